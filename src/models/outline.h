// Outlines: the weights and caches of architectures that cannot run here yet, for `inspect` alone. One file
// each, outline_<architecture>.cc, after the shapes of transformers' modules.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "checkpoint/config_keys.h"
#include "nn/scope.h"

namespace atom {

// What the caches keep, in bytes per token: keys and values in bf16; index keys as index_key_bytes has them.
struct Outline {
  std::vector<int64_t> windows;   // per layer: tokens a query sees; 0: all
  int64_t kv_per_token = 0;       // all layers
  int64_t sliding_per_token = 0;  // of these, layers that keep their window only
  int64_t index_per_token = 0;
};

// Declares the weights of the architecture that the config names. Empty: there is no outline of it. Throws
// Error (invalid) for a bad config.
std::optional<Outline> declare_outline(Scope s, const ConfigReader& config);

namespace outline {

// An index key of so many lanes as it is published: an e4m3 byte per lane, an f32 scale per 128.
int64_t index_key_bytes(int64_t lanes);

// Parts that the outlines share. Names are relative to `s`.
Matrix weight(const Scope& s, std::string_view name, int64_t rows, int64_t cols);
// q, k, v and o of grouped-query attention.
void attention(const Scope& s, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim);
// Before attention and before the feed-forward block.
void block_norms(const Scope& s, int64_t hidden);
void norm(const Scope& s, std::string_view name, int64_t size);
void gated_mlp(const Scope& s, int64_t hidden, int64_t inter);
void experts(const Scope& s, int64_t hidden, int64_t inter, int64_t count, int64_t chosen);
// Embedding, final norm and, unless it is tied, the head.
void frame(const Scope& s, const ConfigReader& config);

}  // namespace outline
}  // namespace atom
