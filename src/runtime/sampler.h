// Choosing the next token of one sequence from its logits. Host code, no state: the same logits, parameters
// and position give the same token, whatever else is in the batch.
#pragma once
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops/draw.h"
#include "runtime/sampling_params.h"
#include "runtime/token_constraint.h"

namespace atom {

struct TokenLogprob {
  int32_t id;
  float logprob;
};

struct SampledToken {
  int32_t id = -1;                // -1: the logits are not finite and nothing can be chosen
  std::vector<TokenLogprob> top;  // if asked: the chosen token first, then the k best in order
};

// The distinct tokens of a sequence, with how often each stands in the output (0: only in the prompt).
class TokenCounts {
 public:
  void add_prompt(std::span<const int32_t> ids) {
    for (const int32_t id : ids) counts_.try_emplace(id, 0);
  }
  void add_output(int32_t id) { ++counts_[id]; }
  const std::unordered_map<int32_t, int32_t>& counts() const { return counts_; }

 private:
  std::unordered_map<int32_t, int32_t> counts_;
};

struct SampleRequest {
  const SamplingParams* params = nullptr;
  const TokenCounts* counts = nullptr;  // null when no penalty is set
  std::span<const int32_t> stop_ids;    // all ids that end the sequence, masked before min_tokens
  uint64_t seed = 0;
  int64_t output_index = 0;               // tokens produced before this one
  TokenConstraint* constraint = nullptr;  // masks what a grammar does not allow; null: none
  int64_t vocab_limit = 0;                // ids from here on are padding and never chosen; 0: none
};

using ops::counter_uniform;
using ops::TokenProbability;

// How a device that chooses among the ids below `choosable` chooses the same token from unchanged logits;
// nothing if it cannot, or more is asked for than the token.
std::optional<ops::TokenChoice> device_choice(const SampleRequest& request, int64_t choosable);
// The token that sample() would choose; -1 if the logits are not finite. Changes `logits`. How: see
// ops/draw.h.
int32_t choose_token(std::span<float> logits, const SampleRequest& request);

// Changes `logits` in place (bias, penalties, masks). Log-probabilities are those of the logits as given.
SampledToken sample(std::span<float> logits, const SampleRequest& request);

// Log-probability of `id`, then the `top` best, of unchanged logits.
std::vector<TokenLogprob> logprobs_of(std::span<const float> logits, int32_t id, int32_t top);

// The distribution that sample() draws from: after bias, penalties, masks, temperature, top-k, top-p and
// min-p, renormalised. Greedy parameters give one candidate. Empty if the logits are not finite.
std::vector<TokenProbability> sampling_distribution(std::span<float> logits, const SampleRequest& request);

}  // namespace atom
