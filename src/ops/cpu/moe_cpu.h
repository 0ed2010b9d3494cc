// The entries of the ops of ops/moe.h on the CPU.
#pragma once
#include "ops/moe.h"

namespace atom::ops {

void route_experts_ref(Stream& stream, const RouteExperts& op);
void sigmoid_scale_ref(Stream& stream, const SigmoidScale& op);

// One token and one expert at a time, sums in double.
void moe_experts_ref(Stream& stream, const MoeExperts& op);

// Tokens gathered by expert, so that each chosen expert's weights are read once and the others' not at all.
void moe_experts_grouped(Stream& stream, const MoeExperts& op);

}  // namespace atom::ops
