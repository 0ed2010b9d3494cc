// The causal convolution and the gated delta rule on the CPU.
#pragma once
#include "ops/delta_rule.h"

namespace atom::ops::cpu {

inline constexpr int32_t kMaxConvKernel = 16;
inline constexpr int64_t kMaxDeltaDim = 1024;
inline constexpr int64_t kDeltaChunk = 64;  // tokens that a head kernel is given at once

void causal_conv_rows(Stream& stream, const CausalConv& op);
void causal_conv_ref(Stream& stream, const CausalConv& op);

// Up to kDeltaChunk tokens of one value head. q and k are normalised and q is scaled.
struct DeltaHead {
  const float* q;      // [tokens, k_dim]
  const float* k;      // [tokens, k_dim]
  const float* decay;  // [tokens]
  const float* beta;   // [tokens]
  const float* v;      // [tokens, v_dim], rows v_stride apart
  float* out;          // [tokens, v_dim], rows out_stride apart
  float* state;        // [k_dim, v_dim]
  int64_t tokens, k_dim, v_dim, v_stride, out_stride;
};
using DeltaHeadKernel = void (*)(const DeltaHead& head);
void delta_head_avx2(const DeltaHead& head);
void delta_head_avx512(const DeltaHead& head);

void delta_rule(Stream& stream, const DeltaRule& op, DeltaHeadKernel kernel);
void delta_rule_ref(Stream& stream, const DeltaRule& op);

}  // namespace atom::ops::cpu
