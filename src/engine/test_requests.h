// What the engine's tests share: a tiny golden model's options, prompts and greedy requests. For tests only.
#pragma once
#include <string>
#include <vector>

#include "engine/loaded_model.h"

namespace atom {

// tests/golden/<name> in exact float32 with small blocks, so that every boundary is met.
inline ModelOptions golden_model(const std::string& name, int64_t max_model_len, int threads = 2) {
  ModelOptions o;
  o.model = std::string(ATOM_TEST_DATA) + "/golden/" + name;
  o.dtype = "float32";
  o.threads = threads;
  o.max_model_len = max_model_len;
  o.max_num_seqs = 8;
  o.block_size = 4;
  return o;
}

// Ids below 96, the smallest vocabulary of the goldens; another salt gives another prompt.
inline std::vector<int32_t> prompt_of(int64_t tokens, int32_t salt) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<int32_t>((i * 37 + salt * 11 + i * i) % 96));
  return ids;
}

inline Request request_of(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  r.sampling.ignore_eos = true;
  return r;
}

}  // namespace atom
