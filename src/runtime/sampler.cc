#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace atom {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
// Tokens this many nats below the best have no measurable probability and are not candidates.
constexpr float kNegligible = 60;

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

void apply_penalties(std::span<float> logits, const SamplingParams& p, const TokenCounts& counts) {
  for (const auto& [id, in_output] : counts.counts()) {
    if (id < 0 || id >= static_cast<int64_t>(logits.size())) continue;
    float& logit = logits[id];
    logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    if (in_output > 0) logit -= p.presence_penalty + p.frequency_penalty * static_cast<float>(in_output);
  }
}

// Bias, penalties and masks; what every way of choosing shares.
void prepare(std::span<float> logits, const SampleRequest& r) {
  const SamplingParams& p = *r.params;
  if (r.vocab_limit > 0 && r.vocab_limit < static_cast<int64_t>(logits.size())) {
    std::fill(logits.begin() + r.vocab_limit, logits.end(), kMasked);
  }
  if (r.counts != nullptr) apply_penalties(logits, p, *r.counts);
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < static_cast<int64_t>(logits.size())) logits[id] += bias;
  }
  if (r.constraint != nullptr) r.constraint->mask(logits, r.stop_ids);
  const bool must_end = r.constraint != nullptr && r.constraint->must_end();
  if (r.output_index < p.min_tokens && !must_end) {
    for (const int32_t id : r.stop_ids) {
      if (id >= 0 && id < static_cast<int64_t>(logits.size())) logits[id] = kMasked;
    }
  }
}

// The first index of the largest value; -1 if any value is NaN or +inf, or all are masked.
int32_t argmax(std::span<const float> logits) {
  float best = kMasked;
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

double log_sum_exp(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - top));
  return static_cast<double>(top) + std::log(sum);
}

// By probability, then by id, so that ties are the same everywhere.
bool more_likely(const TokenProbability& a, const TokenProbability& b) {
  return a.p != b.p ? a.p > b.p : a.id < b.id;
}

}  // namespace

bool takes_largest(const SampleRequest& r) {
  const SamplingParams& p = *r.params;
  return p.greedy() && r.counts == nullptr && r.constraint == nullptr && p.logit_bias.empty() &&
         p.logprobs < 0 && r.output_index >= p.min_tokens;
}

double counter_uniform(uint64_t seed, uint64_t counter) {
  const uint64_t bits = mix(mix(seed + 0x9E3779B97F4A7C15ull) + counter * 0xD1B54A32D192ED03ull);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

std::vector<TokenLogprob> logprobs_of(std::span<const float> logits, int32_t id, int32_t top) {
  const double total = log_sum_exp(logits);
  auto entry = [&](int32_t i) { return TokenLogprob{i, static_cast<float>(logits[i] - total)}; };
  std::vector<TokenLogprob> result{entry(id)};
  const size_t k = std::min<size_t>(std::max(top, 0), logits.size());
  if (k == 0) return result;
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (size_t i = 0; i < k; ++i) result.push_back(entry(order[i]));
  return result;
}

std::vector<TokenProbability> sampling_distribution(std::span<float> logits, const SampleRequest& r) {
  const SamplingParams& p = *r.params;
  prepare(logits, r);
  const int32_t best = argmax(logits);
  if (best < 0) return {};
  if (p.greedy()) return {{best, 1.0}};

  // Candidates with weight exp((x - max) / T); the best has weight 1.
  const double inverse_t = 1.0 / p.temperature;
  const float top = logits[best];
  const float floor = top - kNegligible * p.temperature;
  const double least = p.min_p;
  std::vector<TokenProbability> candidates;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < floor) continue;
    const double weight = std::exp((static_cast<double>(logits[i]) - top) * inverse_t);
    if (weight >= least) candidates.push_back({static_cast<int32_t>(i), weight});
  }
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + p.top_k, candidates.end(), more_likely);
    candidates.resize(p.top_k);
  }
  double total = 0;
  for (const TokenProbability& c : candidates) total += c.p;
  if (p.top_p < 1) {
    std::sort(candidates.begin(), candidates.end(), more_likely);
    const double limit = p.top_p * total;
    double before = 0;
    size_t kept = 0;
    while (kept < candidates.size() && (kept == 0 || before < limit)) before += candidates[kept++].p;
    candidates.resize(kept);
    total = before;
  }
  for (TokenProbability& c : candidates) c.p /= total;
  return candidates;
}

int32_t choose_token(std::span<float> logits, const SampleRequest& r) {
  const std::vector<TokenProbability> distribution = sampling_distribution(logits, r);
  if (distribution.empty()) return -1;
  const uint64_t place = mix(mix(r.seed + 0x9E3779B97F4A7C15ull) +
                             static_cast<uint64_t>(r.output_index) * 0xD1B54A32D192ED03ull);
  int32_t winner = distribution.front().id;
  double best = std::numeric_limits<double>::infinity();
  for (const TokenProbability& c : distribution) {
    const double u = counter_uniform(place, static_cast<uint64_t>(c.id));
    // The time is -log(1 - u) / p, which is at least u / p: few candidates need their logarithm.
    if (u >= best * c.p) continue;
    const double time = -std::log1p(-u) / c.p;
    if (time >= best) continue;
    best = time;
    winner = c.id;
  }
  return winner;
}

SampledToken sample(std::span<float> logits, const SampleRequest& r) {
  SampledToken result;
  std::vector<float> original;
  if (r.params->logprobs >= 0) original.assign(logits.begin(), logits.end());

  result.id = choose_token(logits, r);
  if (result.id >= 0 && !original.empty()) result.top = logprobs_of(original, result.id, r.params->logprobs);
  return result;
}

}  // namespace atom
