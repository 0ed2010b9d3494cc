// The lists on GPUs of ops that are one kernel in a step of decodes and a chain of ops otherwise.
#include "ops/gpu/decode_kernels.h"

namespace atom::ops {
namespace {

using namespace gpu_kernels;

constexpr Impl<Attend> kAttend[] = {
    {"attend.decode", refuse_attend_decode, attend_decode},
    {"attend.mixed", refuse_attend_mixed, attend_mixed},
    {"attend.composed", accept_all<Attend>, attend_composed},
};
constexpr Impl<GatedDelta> kGatedDelta[] = {
    {"gated_delta.decode", refuse_gated_delta_decode, gated_delta_decode},
    {"gated_delta.composed", accept_all<GatedDelta>, gated_delta_composed},
};
constexpr Impl<RouteRows> kRouteRows[] = {
    {"route_rows.few", refuse_route_few, route_few},
    {"route_rows.composed", accept_all<RouteRows>, route_rows_composed},
};

}  // namespace

template <>
std::span<const Impl<Attend>> gpu_impls<Attend>() {
  return kAttend;
}
template <>
std::span<const Impl<GatedDelta>> gpu_impls<GatedDelta>() {
  return kGatedDelta;
}
template <>
std::span<const Impl<RouteRows>> gpu_impls<RouteRows>() {
  return kRouteRows;
}

}  // namespace atom::ops
