// Attention whose output is gated: o(attention * sigmoid(gate)), with query and gate from one projection.
#pragma once
#include "nn/linear.h"

namespace atom::nn {

struct GatedAttentionConfig {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  ops::RopeParameters rope;
  float norm_eps = 0;  // of the (1 + w) norm of every q and k head
  bool bias = false;   // of all projections
};

class GatedAttention {
 public:
  GatedAttention(Scope s, int64_t hidden, const GatedAttentionConfig& config);
  Partial operator()(Ctx& c, Tensor x) const;

 private:
  int64_t heads_, kv_heads_, head_dim_;  // heads of this rank
  int32_t rotary_dim_;
  int rope_, cache_;  // handles
  Matrix qkv_gate_;   // q heads, k heads, v heads, gates
  Vector bias_;
  RmsNorm q_norm_, k_norm_;
  RowLinear o_;
};

}  // namespace atom::nn
