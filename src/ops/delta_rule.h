// Gated delta nets: the short causal convolution before the rule, the rule itself, and the gates after it.
// Both recurrences carry float32 state per sequence in slots.
#pragma once
#include "ops/linear.h"

namespace atom::ops {

// One sequence's rows in a step and the slot of its state, which holds what is left of the rows before. On a
// GPU the slot may be -1: the row pads a recorded step, keeps nothing and gives zeros.
struct RecurrentSequence {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t slot = 0;
  int32_t dropped = 0;  // of the last rows: they are computed, and the state stays as it is before them
};

// Depthwise causal convolution over time, then SiLU:
//   out[t, c] = silu(sum_j weight[c, j] * x[t - (kernel - 1) + j, c])
// Rows before the step come from the state, which holds the last kernel - 1 rows and is updated.
struct CausalConv {
  Tensor out;                                    // [tokens, channels] f32
  Tensor x;                                      // [tokens, >= channels] f32: the first columns
  Tensor weight;                                 // [channels * kernel] f32
  Tensor state;                                  // [slots, (kernel - 1) * channels] f32: rows, oldest first
  std::span<const RecurrentSequence> sequences;  // covering all rows, distinct slots
  int32_t kernel = 0;
};

// Per value head h with its key head h / (v_heads / k_heads), S [k_dim, v_dim] carried along the sequence:
//   g = exp(-exp(a_log) softplus(a + dt_bias)), beta = sigmoid(b); q, k divided by sqrt(|.|² + 1e-6), q by
//   sqrt(k_dim); S = g S; u = beta (v - Sᵀk); S += k uᵀ; out = Sᵀq
// Bound: bytes of S at decode (read and written once per token), flops (about 6 k_dim v_dim per head and
// token) in prefill.
struct DeltaRule {
  Tensor out;             // [tokens, v_heads * v_dim] f32
  Tensor qkv;             // [tokens, 2 * k_heads * k_dim + v_heads * v_dim] f32: q heads, k heads, v heads
  Tensor a, b;            // [tokens, v_heads] f32, rows may be strided
  Tensor a_log, dt_bias;  // [v_heads] f32
  Tensor state;           // [slots, v_heads * k_dim * v_dim] f32
  std::span<const RecurrentSequence> sequences;  // covering all rows, distinct slots
  int32_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0;
  Precision precision = Precision::exact;  // fast: keys, queries and the state may be rounded for products
};

// x = rms_norm(x; weight, eps) * silu(gate), per head of weight.dim(0) lanes.
struct GatedRmsNorm {
  Tensor x;       // [tokens, heads * dim] f32, updated in place
  Tensor gate;    // the same shape, rows may be strided
  Tensor weight;  // [dim] f32
  float eps = 0;
};

// x *= sigmoid(gate).
struct SigmoidGate {
  Tensor x;     // [tokens, n] f32, updated in place
  Tensor gate;  // the same shape, rows may be strided
};

void check(const CausalConv& op);
void check(const DeltaRule& op);
void check(const GatedRmsNorm& op);
void check(const SigmoidGate& op);
inline Device device_of(const CausalConv& op) { return op.out.device; }
inline Device device_of(const DeltaRule& op) { return op.out.device; }
inline Device device_of(const GatedRmsNorm& op) { return op.x.device; }
inline Device device_of(const SigmoidGate& op) { return op.x.device; }

template <>
std::span<const Impl<CausalConv>> gpu_impls<CausalConv>();
template <>
std::span<const Impl<DeltaRule>> gpu_impls<DeltaRule>();
template <>
std::span<const Impl<GatedRmsNorm>> gpu_impls<GatedRmsNorm>();
template <>
std::span<const Impl<SigmoidGate>> gpu_impls<SigmoidGate>();

}  // namespace atom::ops
