// A gated delta net from the rows of its input projection to what its output projection takes, as one op.
#pragma once
#include "ops/delta_rule.h"

namespace atom::ops {

// `conv`, then `rule` over conv.out, then `norm` over rule.out. conv.out is left in no particular state.
struct GatedDelta {
  CausalConv conv;
  DeltaRule rule;     // qkv: conv.out; the same sequences
  GatedRmsNorm norm;  // x: rule.out
};

void check(const GatedDelta& op);
inline Device device_of(const GatedDelta& op) { return op.rule.out.device; }

template <>
std::span<const Impl<GatedDelta>> gpu_impls<GatedDelta>();

// One op after the other, on every device.
void gated_delta_composed(Stream& stream, const GatedDelta& op);

}  // namespace atom::ops
