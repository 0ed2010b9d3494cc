// The GPU implementations of gated delta nets. As in kernels.h: each launches on the stream's queue and
// returns.
#pragma once
#include <cmath>

#include "ops/delta_rule.h"

namespace atom::ops::gpu_kernels {

// Whether a sequence is one for chunked_delta: below these rows the recurrence is as fast, and it can keep a
// state in the middle of a chunk.
constexpr int kLeastChunkedRows = 64;
#if defined(__CUDACC__) || defined(__HIPCC__)
__device__ inline bool takes_chunks(const RecurrentSequence& s) {
  return s.rows >= kLeastChunkedRows && s.slot >= 0 && s.dropped == 0;
}
#endif

// A kernel's arguments with what every kernel of the rule is given; the rest is the caller's.
template <class Arguments>
Arguments arguments_of(const DeltaRule& op) {
  Arguments a{};
  a.out = op.out.as<float>();
  a.qkv = op.qkv.as<float>();
  a.a = op.a.as<float>();
  a.b = op.b.as<float>();
  a.a_log = op.a_log.as<float>();
  a.dt_bias = op.dt_bias.as<float>();
  a.state = op.state.as<float>();
  a.out_stride = op.out.strides[0];
  a.qkv_stride = op.qkv.strides[0];
  a.a_stride = op.a.strides[0];
  a.b_stride = op.b.strides[0];
  a.state_stride = op.state.strides[0];
  a.sequences = op.sequences.data();
  a.k_heads = op.k_heads;
  a.v_heads = op.v_heads;
  a.v_dim = op.v_dim;
  a.q_scale = 1 / std::sqrt(static_cast<float>(op.k_dim));
  return a;
}

void causal_conv(Stream& stream, const CausalConv& op);
void delta_rule(Stream& stream, const DeltaRule& op);
// Only the sequences that chunked_delta leaves to the recurrence.
void delta_rule_short(Stream& stream, const DeltaRule& op);
const char* refuse_chunked_delta(const Stream& stream, const DeltaRule& op);
void chunked_delta(Stream& stream, const DeltaRule& op);
void gated_rms_norm(Stream& stream, const GatedRmsNorm& op);
void sigmoid_gate(Stream& stream, const SigmoidGate& op);

}  // namespace atom::ops::gpu_kernels
