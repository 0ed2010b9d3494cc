// The build without a GPU backend: every list is empty.
#include "ops/argmax.h"
#include "ops/attention.h"
#include "ops/draw.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace atom::ops {

template <>
std::span<const Impl<AddRmsNorm>> gpu_impls<AddRmsNorm>() {
  return {};
}
template <>
std::span<const Impl<RmsNorm>> gpu_impls<RmsNorm>() {
  return {};
}
template <>
std::span<const Impl<Linear>> gpu_impls<Linear>() {
  return {};
}
template <>
std::span<const Impl<GatedUp>> gpu_impls<GatedUp>() {
  return {};
}
template <>
std::span<const Impl<ArgMax>> gpu_impls<ArgMax>() {
  return {};
}
template <>
std::span<const Impl<DrawTokens>> gpu_impls<DrawTokens>() {
  return {};
}
template <>
std::span<const Impl<TakeChosen>> gpu_impls<TakeChosen>() {
  return {};
}
template <>
std::span<const Impl<Embed>> gpu_impls<Embed>() {
  return {};
}
template <>
std::span<const Impl<GatherRows>> gpu_impls<GatherRows>() {
  return {};
}
template <>
std::span<const Impl<ComputeRopeAngles>> gpu_impls<ComputeRopeAngles>() {
  return {};
}
template <>
std::span<const Impl<QkNormRopeStore>> gpu_impls<QkNormRopeStore>() {
  return {};
}
template <>
std::span<const Impl<PagedAttention>> gpu_impls<PagedAttention>() {
  return {};
}

}  // namespace atom::ops
