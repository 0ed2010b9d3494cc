// The build without a GPU backend: every list is empty.
#include "ops/attend.h"
#include "ops/gated_delta.h"
#include "ops/router.h"

namespace atom::ops {

template <>
std::span<const Impl<Attend>> gpu_impls<Attend>() {
  return {};
}
template <>
std::span<const Impl<GatedDelta>> gpu_impls<GatedDelta>() {
  return {};
}
template <>
std::span<const Impl<RouteRows>> gpu_impls<RouteRows>() {
  return {};
}

}  // namespace atom::ops
