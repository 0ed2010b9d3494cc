#include "ops/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace atom::ops {
namespace {

// Tokens this many nats below the best have no measurable probability and are not candidates.
constexpr float kNegligible = 60;

// The first index of the largest value; -1 if any value is NaN or +inf, or all are masked.
int32_t largest(std::span<const float> logits) {
  float best = -std::numeric_limits<float>::infinity();
  int32_t at = -1;
  bool finite = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float x = logits[i];
    finite &= x < std::numeric_limits<float>::infinity();  // false for NaN too
    if (x > best) {
      best = x;
      at = static_cast<int32_t>(i);
    }
  }
  return finite ? at : -1;
}

void draw_ref(Stream& stream, const DrawTokens& op) {
  stream.pool().parallel_for(op.out.dim(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      op.out.as<int32_t>()[t] = draw_token({op.logits.row<float>(t), static_cast<size_t>(op.logits.dim(1))},
                                           op.choices[static_cast<size_t>(t)]);
    }
  });
}

void take_ref(Stream&, const TakeChosen& op) {
  for (int32_t& id : op.ids) {
    if (id < 0) id = op.chosen.as<int32_t>()[-1 - id];
  }
}

}  // namespace

std::vector<TokenProbability> token_distribution(std::span<const float> logits, const TokenChoice& choice) {
  const int32_t best = largest(logits);
  if (best < 0) return {};
  if (choice.temperature < kGreedy) return {{best, 1.0}};

  // Candidates with weight exp((x - max) / T); the best has weight 1.
  const double inverse_t = 1.0 / choice.temperature;
  const float top = logits[static_cast<size_t>(best)];
  const float floor = top - kNegligible * choice.temperature;
  const double least = choice.min_p;
  std::vector<TokenProbability> candidates;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < floor) continue;
    const double weight = std::exp((static_cast<double>(logits[i]) - top) * inverse_t);
    if (weight >= least) candidates.push_back({static_cast<int32_t>(i), weight});
  }
  const auto more_likely = [&](const TokenProbability& a, const TokenProbability& b) {
    const float x = logits[static_cast<size_t>(a.id)], y = logits[static_cast<size_t>(b.id)];
    return x != y ? x > y : a.id < b.id;
  };
  if (choice.top_k > 0 && static_cast<size_t>(choice.top_k) < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + choice.top_k, candidates.end(), more_likely);
    candidates.resize(static_cast<size_t>(choice.top_k));
  }
  double total = 0;
  for (const TokenProbability& c : candidates) total += c.p;
  if (choice.top_p < 1) {
    std::sort(candidates.begin(), candidates.end(), more_likely);
    const double limit = choice.top_p * total;
    double before = 0;
    size_t kept = 0;
    while (kept < candidates.size() && (kept == 0 || before < limit)) before += candidates[kept++].p;
    candidates.resize(kept);
    total = before;
  }
  for (TokenProbability& c : candidates) c.p /= total;
  return candidates;
}

int32_t draw_token(std::span<const float> logits, const TokenChoice& choice) {
  const std::vector<TokenProbability> distribution = token_distribution(logits, choice);
  if (distribution.empty()) return -1;
  const uint64_t seed = mixed_seed(choice.place);
  int32_t winner = distribution.front().id;
  double best = std::numeric_limits<double>::infinity();
  for (const TokenProbability& c : distribution) {
    const double u = uniform_of(counter_bits(seed, static_cast<uint64_t>(c.id)));
    // The time is -log(1 - u) / p, which is at least u / p: few candidates need their logarithm.
    if (u >= best * c.p) continue;
    const double time = -std::log1p(-u) / c.p;
    if (time >= best) continue;
    best = time;
    winner = c.id;
  }
  return winner;
}

void check(const DrawTokens& op) {
  CHECK(op.logits && op.logits.rank == 2 && op.logits.dtype == DType::f32 && op.logits.strides[1] == 1,
        "logits {}", op.logits.to_string());
  CHECK(op.out && op.out.rank == 1 && op.out.dtype == DType::i32 && op.out.strides[0] == 1 &&
            op.out.dim(0) == op.logits.dim(0) && op.out.device == op.logits.device,
        "out {} for logits {}", op.out.to_string(), op.logits.to_string());
  CHECK(static_cast<int64_t>(op.choices.size()) == op.out.dim(0), "{} choices for {}", op.choices.size(),
        op.out.to_string());
}

void check(const TakeChosen& op) {
  CHECK(op.chosen && op.chosen.rank == 1 && op.chosen.dtype == DType::i32 && op.chosen.strides[0] == 1,
        "chosen {}", op.chosen.to_string());
}

template <>
std::span<const Impl<DrawTokens>> impls<DrawTokens>() {
  static const Impl<DrawTokens> list[] = {{"draw.ref", accept_all<DrawTokens>, draw_ref}};
  return list;
}

template <>
std::span<const Impl<TakeChosen>> impls<TakeChosen>() {
  static const Impl<TakeChosen> list[] = {{"take_chosen.ref", accept_all<TakeChosen>, take_ref}};
  return list;
}

}  // namespace atom::ops
