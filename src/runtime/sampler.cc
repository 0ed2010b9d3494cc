#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace atom {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

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

double log_sum_exp(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - top));
  return static_cast<double>(top) + std::log(sum);
}

ops::TokenChoice choice_of(const SampleRequest& r) {
  const SamplingParams& p = *r.params;
  return {.place = ops::draw_place(r.seed, r.output_index),
          .temperature = p.temperature,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .top_k = p.top_k};
}

}  // namespace

std::optional<ops::TokenChoice> device_choice(const SampleRequest& r, int64_t choosable) {
  const SamplingParams& p = *r.params;
  const bool plain = r.counts == nullptr && r.constraint == nullptr && p.logit_bias.empty() &&
                     p.logprobs < 0 && r.output_index >= p.min_tokens && p.top_k <= ops::kMostTopK;
  const bool padding = r.vocab_limit > 0 && r.vocab_limit < choosable;
  return plain && !padding ? std::optional(choice_of(r)) : std::nullopt;
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
  prepare(logits, r);
  return ops::token_distribution(logits, choice_of(r));
}

int32_t choose_token(std::span<float> logits, const SampleRequest& r) {
  prepare(logits, r);
  return ops::draw_token(logits, choice_of(r));
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
