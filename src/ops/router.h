// A mixture's router from the rows it sees to the experts they take, as one op.
#pragma once
#include "ops/linear.h"
#include "ops/moe.h"

namespace atom::ops {

// `logits` and, if it has an output, `also`, another product of the same rows; then `route` over logits.out.
struct RouteRows {
  Linear logits;
  RouteExperts route;
  Linear also;  // the gate of a shared expert
};

void check(const RouteRows& op);
inline Device device_of(const RouteRows& op) { return op.route.ids.device; }

template <>
std::span<const Impl<RouteRows>> gpu_impls<RouteRows>();

// One op after the other, on every device.
void route_rows_composed(Stream& stream, const RouteRows& op);

}  // namespace atom::ops
