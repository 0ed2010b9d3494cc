// Attention over a latent: queries and keys | values pass through low-rank projections, and the cache holds
// one small vector per token for all heads. With an indexer it visits only selected tokens.
#pragma once
#include <optional>

#include "checkpoint/config_keys.h"
#include "nn/indexer.h"
#include "nn/linear.h"
#include "ops/latent_attention.h"

namespace atom::nn {

struct LatentAttentionConfig {
  ops::LatentShape shape;  // all heads
  int64_t q_rank = 0;      // 0: queries are projected directly
  ops::RopeParameters rope;
  bool rope_interleaved = true;
  bool bias = false;  // of the projections into the low ranks and of the output
  float norm_eps = 1e-6f;
  float scale = 0;
};

// Keys as DeepSeek-V3 has them. `q_rank` stays 0 where q_lora_rank is null.
LatentAttentionConfig read_latent_attention(const ConfigReader& config);

class LatentAttention {
 public:
  LatentAttention(Scope s, int64_t hidden, const LatentAttentionConfig& config,
                  LayerCache::Fp8 fp8 = LayerCache::Fp8::none);
  Partial operator()(Ctx& c, Tensor x) const;

 private:
  friend class SparseLatentAttention;
  struct Compressed {
    Tensor q;   // [tokens, q_rank], normalised; x itself without a rank
    Tensor kv;  // [tokens, kv_rank + rope_dim], not yet normalised
  };
  Compressed compress(Ctx& c, Tensor x) const;
  Partial attend(Ctx& c, const Compressed& in, Tensor selected) const;

  LatentAttentionConfig config_;  // heads of this rank
  int rope_, cache_;              // handles
  ColumnLinear compress_;         // q_a | kv_a, or kv_a alone
  std::optional<RmsNorm> q_norm_;
  ColumnLinear q_;  // q_b or q
  RmsNorm kv_norm_;
  Matrix kv_b_;
  RowLinear o_;
};

// The same with a selection of positions per row, made by the layer's own indexer or taken over from the
// nearest layer before that has one.
class SparseLatentAttention {
 public:
  SparseLatentAttention(Scope s, int64_t hidden, const LatentAttentionConfig& config,
                        const IndexerConfig& indexer, int64_t layer);
  Partial operator()(Ctx& c, Tensor x) const;

 private:
  LatentAttention attention_;
  int selection_;         // carry handle
  bool keeps_selection_;  // in later steps of a drafter
  std::optional<Indexer> indexer_;
};

}  // namespace atom::nn
