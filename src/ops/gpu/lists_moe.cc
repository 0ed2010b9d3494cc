// The lists of mixtures of experts on GPUs, best first.
#include "ops/gpu/kernels.h"
#include "ops/gpu/moe_kernels.h"

namespace atom::ops {
namespace {

using namespace gpu_kernels;

constexpr Impl<RouteExperts> kRouteExperts[] = {
    {"route_experts.gpu", accept_all<RouteExperts>, route_experts}};
constexpr Impl<MoeExperts> kMoeExperts[] = {
    {"moe_experts.piece_row_mma", refuse_piece_row_experts, piece_row_experts},
    {"moe_experts.row_mma", refuse_row_experts, row_experts},
    {"moe_experts.few_mma", refuse_few_experts, few_experts},
    {"moe_experts.hopper_mma", refuse_hopper_experts, hopper_experts},
    {"moe_experts.grouped_mma", refuse_grouped_experts, grouped_experts},
    {"moe_experts.gpu_rows", refuse_experts_by_rows, experts_by_rows},
};
constexpr Impl<MoeBlock> kMoeBlock[] = {
    {"moe_block.row_mma", refuse_row_block, row_block},
    {"moe_block.composed", accept_all<MoeBlock>, moe_block_composed},
};
constexpr Impl<SigmoidScale> kSigmoidScale[] = {
    {"sigmoid_scale.gpu", accept_all<SigmoidScale>, sigmoid_scale}};
constexpr Impl<SpreadRmsNorm> kSpreadNorm[] = {
    {"spread_norm.gpu", accept_all<SpreadRmsNorm>, spread_rms_norm}};

}  // namespace

template <>
std::span<const Impl<RouteExperts>> gpu_impls<RouteExperts>() {
  return kRouteExperts;
}
template <>
std::span<const Impl<MoeExperts>> gpu_impls<MoeExperts>() {
  return kMoeExperts;
}
template <>
std::span<const Impl<MoeBlock>> gpu_impls<MoeBlock>() {
  return kMoeBlock;
}
template <>
std::span<const Impl<SigmoidScale>> gpu_impls<SigmoidScale>() {
  return kSigmoidScale;
}
template <>
std::span<const Impl<SpreadRmsNorm>> gpu_impls<SpreadRmsNorm>() {
  return kSpreadNorm;
}

}  // namespace atom::ops
