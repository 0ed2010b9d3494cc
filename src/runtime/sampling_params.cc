#include "runtime/sampling_params.h"

#include <cmath>

namespace atom {
namespace {

bool in(float value, float low, float high) { return value >= low && value <= high; }  // false for NaN

}  // namespace

std::optional<Error> validate(const SamplingParams& p, int64_t vocab) {
  if (!in(p.temperature, 0, 100)) return invalid("temperature: {} is outside [0, 100]", p.temperature);
  if (!(p.top_p > 0 && p.top_p <= 1)) return invalid("top_p: {} is outside (0, 1]", p.top_p);
  if (p.top_k < 0) return invalid("top_k: {} is negative; 0 switches it off", p.top_k);
  if (!in(p.min_p, 0, 1)) return invalid("min_p: {} is outside [0, 1]", p.min_p);
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 100)) {
    return invalid("repetition_penalty: {} is outside (0, 100]", p.repetition_penalty);
  }
  if (!in(p.presence_penalty, -2, 2))
    return invalid("presence_penalty: {} is outside [-2, 2]", p.presence_penalty);
  if (!in(p.frequency_penalty, -2, 2))
    return invalid("frequency_penalty: {} is outside [-2, 2]", p.frequency_penalty);
  if (p.min_tokens < 0) return invalid("min_tokens: {} is negative", p.min_tokens);
  if (p.logprobs > 100) return invalid("logprobs: {} is more than 100", p.logprobs);
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= vocab) return invalid("logit_bias: token id {} is outside [0, {})", id, vocab);
    if (!in(bias, -100, 100)) return invalid("logit_bias: {} for token {} is outside [-100, 100]", bias, id);
  }
  for (const int32_t id : p.stop_ids) {
    if (id < 0 || id >= vocab) return invalid("stop token ids: {} is outside [0, {})", id, vocab);
  }
  return std::nullopt;
}

}  // namespace atom
