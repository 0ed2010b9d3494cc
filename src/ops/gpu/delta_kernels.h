// The GPU implementations of gated delta nets. As in kernels.h: each launches on the stream's queue and
// returns.
#pragma once
#include "ops/delta_rule.h"

namespace atom::ops::gpu_kernels {

void causal_conv(Stream& stream, const CausalConv& op);
void delta_rule(Stream& stream, const DeltaRule& op);
void gated_rms_norm(Stream& stream, const GatedRmsNorm& op);
void sigmoid_gate(Stream& stream, const SigmoidGate& op);

}  // namespace atom::ops::gpu_kernels
