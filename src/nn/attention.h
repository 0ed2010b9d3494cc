// Grouped-query attention with a paged cache.
#pragma once
#include <optional>

#include "nn/linear.h"

namespace atom::nn {

struct AttentionConfig {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::optional<ops::RopeParameters> rope;
  bool rope_interleaved = false;
  int64_t window = 0;                // 0: all keys
  std::optional<float> qk_norm_eps;  // set: RMS norm of every q and k head before the rope
  bool qk_norm_whole = false;        // that norm goes over all heads together, with a weight per lane
  bool qkv_bias = false, o_bias = false;
  bool sinks = false;  // a learned logit per head that takes part in the softmax and has no value

  AttentionConfig with_window(int64_t w) const {
    AttentionConfig copy = *this;
    copy.window = w;
    return copy;
  }
};

// RMS norm over the heads of all ranks, which each hold some. Neighbours that share heads count them once.
class WholeNorm {
 public:
  // s: the scope of the weight [heads * head_dim].
  WholeNorm(Scope s, int64_t heads, int64_t head_dim, float eps);
  void operator()(Ctx& c, Tensor x) const;  // [tokens, lanes of this rank], in place

 private:
  Vector weight_;
  int64_t lanes_;
  int32_t copies_;
  float eps_;
  Communicator* axis_;
};

class SelfAttention {
 public:
  SelfAttention(Scope s, int64_t hidden, const AttentionConfig& config);
  Partial operator()(Ctx& c, Tensor x) const;  // nobody reads x afterwards

 private:
  int64_t heads_, kv_heads_, head_dim_;  // heads of this rank
  int64_t window_;
  bool rope_interleaved_;
  std::optional<int> rope_;  // handles
  int cache_;
  int32_t rotary_dim_ = 0;
  ColumnLinear qkv_;
  RowLinear o_;
  std::optional<RmsNorm> q_norm_, k_norm_;
  std::optional<WholeNorm> q_whole_norm_, k_whole_norm_;
  Vector sinks_;
};

}  // namespace atom::nn
