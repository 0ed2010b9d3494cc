// The portable entries every faster one is compared with.
#pragma once
#include "ops/linear.h"

namespace atom::ops {

// Weights widened row by row, sums in double.
void linear_ref(Stream& stream, const Linear& op);

// Linear into scratch, then the activation.
void gated_up_composed(Stream& stream, const GatedUp& op);

}  // namespace atom::ops
