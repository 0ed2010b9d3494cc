// What a request may say about choosing tokens.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace atom {

struct SamplingParams {
  float temperature = 1;         // 0: greedy
  float top_p = 1;               // smallest set of most likely tokens whose mass reaches top_p
  int32_t top_k = 0;             // 0: off
  float min_p = 0;               // tokens with at least min_p times the best probability
  float repetition_penalty = 1;  // over prompt and output, once per distinct token
  float presence_penalty = 0;    // over output
  float frequency_penalty = 0;   // over output, per occurrence
  std::vector<std::pair<int32_t, float>> logit_bias;
  int32_t min_tokens = 0;         // until then no stop token can be chosen
  std::optional<uint64_t> seed;   // absent: a random one
  int32_t logprobs = -1;          // -1: none; k: the chosen token's and the k best
  std::vector<int32_t> stop_ids;  // besides the checkpoint's end-of-sequence ids
  bool ignore_eos = false;

  bool greedy() const { return temperature < 1e-5f; }
};

// The first problem, naming the parameter, or nothing. `vocab` bounds token ids.
std::optional<Error> validate(const SamplingParams& params, int64_t vocab);

}  // namespace atom
