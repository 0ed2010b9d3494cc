// The lists of gated delta nets and gates on GPUs.
#include "ops/gpu/delta_kernels.h"

namespace atom::ops {
namespace {

using namespace gpu_kernels;

constexpr int kMaxKeyDim = 256;
const char* refuse_wide_keys(const Stream&, const DeltaRule& op) {
  return op.k_dim > kMaxKeyDim ? "for key heads of up to 256 lanes" : nullptr;
}

constexpr Impl<CausalConv> kCausalConv[] = {{"causal_conv.gpu", accept_all<CausalConv>, causal_conv}};
constexpr Impl<DeltaRule> kDeltaRule[] = {
    {"delta_rule.chunked_mma", refuse_chunked_delta, chunked_delta},
    {"delta_rule.gpu", refuse_wide_keys, delta_rule},
};
constexpr Impl<GatedRmsNorm> kGatedNorm[] = {{"gated_norm.gpu", accept_all<GatedRmsNorm>, gated_rms_norm}};
constexpr Impl<SigmoidGate> kSigmoidGate[] = {{"sigmoid_gate.gpu", accept_all<SigmoidGate>, sigmoid_gate}};

}  // namespace

template <>
std::span<const Impl<CausalConv>> gpu_impls<CausalConv>() {
  return kCausalConv;
}
template <>
std::span<const Impl<DeltaRule>> gpu_impls<DeltaRule>() {
  return kDeltaRule;
}
template <>
std::span<const Impl<GatedRmsNorm>> gpu_impls<GatedRmsNorm>() {
  return kGatedNorm;
}
template <>
std::span<const Impl<SigmoidGate>> gpu_impls<SigmoidGate>() {
  return kSigmoidGate;
}

}  // namespace atom::ops
