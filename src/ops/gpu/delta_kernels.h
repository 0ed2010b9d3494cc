// The GPU implementations of gated delta nets. As in kernels.h: each launches on the stream's queue and
// returns.
#pragma once
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

void causal_conv(Stream& stream, const CausalConv& op);
void delta_rule(Stream& stream, const DeltaRule& op);
// Only the sequences that chunked_delta leaves to the recurrence.
void delta_rule_short(Stream& stream, const DeltaRule& op);
const char* refuse_chunked_delta(const Stream& stream, const DeltaRule& op);
void chunked_delta(Stream& stream, const DeltaRule& op);
void gated_rms_norm(Stream& stream, const GatedRmsNorm& op);
void sigmoid_gate(Stream& stream, const SigmoidGate& op);

}  // namespace atom::ops::gpu_kernels
