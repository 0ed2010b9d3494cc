// The build without a GPU backend: no experts there.
#include "ops/moe_block.h"
#include "ops/spread_norm.h"

namespace atom::ops {

template <>
std::span<const Impl<RouteExperts>> gpu_impls<RouteExperts>() {
  return {};
}
template <>
std::span<const Impl<MoeExperts>> gpu_impls<MoeExperts>() {
  return {};
}
template <>
std::span<const Impl<MoeBlock>> gpu_impls<MoeBlock>() {
  return {};
}
template <>
std::span<const Impl<SigmoidScale>> gpu_impls<SigmoidScale>() {
  return {};
}
template <>
std::span<const Impl<SpreadRmsNorm>> gpu_impls<SpreadRmsNorm>() {
  return {};
}

}  // namespace atom::ops
