// A mixture of experts from the rows that it sees to its sum, as one op.
#pragma once
#include "ops/router.h"

namespace atom::ops {

// `route`; then, if `shared_up` has an output, the shared expert into experts.out, scaled by the sigmoid of
// route.also if that has one; then `experts`, added to it.
struct MoeBlock {
  RouteRows route;
  GatedUp shared_up;
  Linear shared_down;
  MoeExperts experts;
};

void check(const MoeBlock& op);
inline Device device_of(const MoeBlock& op) { return op.experts.out.device; }

template <>
std::span<const Impl<MoeBlock>> gpu_impls<MoeBlock>();

// One op after the other, on every device.
void moe_block_composed(Stream& stream, const MoeBlock& op);

}  // namespace atom::ops
