// cos and sin of every token of a step.
#pragma once
#include "ops/rope.h"

namespace atom::ops::cpu {

void compute_rope_angles(Stream& stream, const ComputeRopeAngles& op);

}  // namespace atom::ops::cpu
