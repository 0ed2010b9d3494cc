// Gates of delta nets and of gated attention, row by row.
#pragma once
#include "ops/delta_rule.h"

namespace atom::ops::cpu {

void gated_rms_norm_ref(Stream& stream, const GatedRmsNorm& op);
void sigmoid_gate_ref(Stream& stream, const SigmoidGate& op);

}  // namespace atom::ops::cpu
