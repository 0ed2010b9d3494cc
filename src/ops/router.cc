// Checks, the composed entry and the CPU's list of routers.
#include "ops/router.h"

namespace atom::ops {
namespace {

constexpr Impl<RouteRows> kRouteRows[] = {
    {"route_rows.composed", accept_all<RouteRows>, route_rows_composed}};

}  // namespace

void check(const RouteRows& op) {
  check(op.logits);
  check(op.route);
  CHECK(op.route.logits.data == op.logits.out.data && op.route.logits.strides[0] == op.logits.out.strides[0],
        "the choice is of other logits than those that are computed");
  if (!op.also.out) return;
  check(op.also);
  CHECK(op.also.x.data == op.logits.x.data && op.also.x.strides[0] == op.logits.x.strides[0],
        "two products of different rows");
}

void route_rows_composed(Stream& stream, const RouteRows& op) {
  run(stream, op.logits);
  run(stream, op.route);
  if (op.also.out) run(stream, op.also);
}

template <>
std::span<const Impl<RouteRows>> impls<RouteRows>() {
  return kRouteRows;
}

}  // namespace atom::ops
