// The build without a GPU backend: every list is empty.
#include "ops/delta_rule.h"

namespace atom::ops {

template <>
std::span<const Impl<CausalConv>> gpu_impls<CausalConv>() {
  return {};
}
template <>
std::span<const Impl<DeltaRule>> gpu_impls<DeltaRule>() {
  return {};
}
template <>
std::span<const Impl<GatedRmsNorm>> gpu_impls<GatedRmsNorm>() {
  return {};
}
template <>
std::span<const Impl<SigmoidGate>> gpu_impls<SigmoidGate>() {
  return {};
}

}  // namespace atom::ops
