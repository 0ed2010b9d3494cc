// The lists of implementations on GPUs, best first. The last entries are plain and take whatever `check`
// accepts.
#include "ops/gpu/kernels.h"
#include "ops/gpu/prompt_kernels.h"

namespace atom::ops {
namespace {

using namespace gpu_kernels;

constexpr Impl<AddRmsNorm> kAddRmsNorm[] = {
    {"norm.gpu_reduced", refuse_reduced_norm, reduced_norm},
    {"norm.gpu", accept_all<AddRmsNorm>, add_rms_norm},
};
constexpr Impl<ArgMax> kArgMax[] = {{"argmax.gpu", accept_all<ArgMax>, argmax}};
constexpr Impl<RmsNorm> kRmsNorm[] = {{"norm.gpu", accept_all<RmsNorm>, rms_norm}};
constexpr Impl<DrawTokens> kDraw[] = {{"draw.gpu", accept_all<DrawTokens>, draw_tokens}};
constexpr Impl<TakeChosen> kTakeChosen[] = {{"take_chosen.gpu", accept_all<TakeChosen>, take_chosen}};
constexpr Impl<Embed> kEmbed[] = {{"embed.gpu", accept_all<Embed>, embed}};
constexpr Impl<GatherRows> kGatherRows[] = {{"gather.gpu", accept_all<GatherRows>, gather_rows}};
constexpr Impl<ComputeRopeAngles> kAngles[] = {
    {"rope.gpu", accept_all<ComputeRopeAngles>, compute_rope_angles}};
constexpr Impl<QkNormRopeStore> kStore[] = {
    {"rope_store.gpu", accept_all<QkNormRopeStore>, qk_norm_rope_store}};
constexpr Impl<PagedAttention> kAttention[] = {
    {"attention.hopper_mma", refuse_prompt, prompt_attention},
    {"attention.widened_mma", refuse_widened_prompt, widened_prompt},
    {"attention.prefill_mma", refuse_prefill, prefill_attention},
    {"attention.gpu", accept_all<PagedAttention>, paged_attention},
};

constexpr Impl<Linear> kLinear[] = {
    {"linear.row_mma", refuse_row_linear, row_linear},
    {"linear.exact_split", refuse_split_linear, split_linear},
    {"linear.gpu_matvec", refuse_matvec, matvec},
    {"linear.hopper_mma", refuse_grouped_linear, grouped_linear},
    {"linear.packed_mma", refuse_packed_linear, packed_linear},
    {"linear.cublaslt", refuse_library_gemm, library_gemm},
    {"linear.cublaslt_exact", refuse_split_gemm, split_gemm},
    {"linear.widened_cublaslt", refuse_widened_gemm, widened_gemm},
    {"linear.gpu_tiled", accept_all<Linear>, linear_tiled},
};
constexpr Impl<GatedUp> kGatedUp[] = {
    {"gated_up.row_mma", refuse_row_gated, row_gated},
    {"gated_up.gpu_matvec", refuse_gated_matvec, gated_matvec},
    {"gated_up.hopper_mma", refuse_grouped_gated, grouped_gated},
    {"gated_up.packed_mma", refuse_packed_gated, packed_gated},
    {"gated_up.cublaslt", refuse_library_gated, library_gated},
    {"gated_up.widened_cublaslt", refuse_widened_gated, widened_gated},
    {"gated_up.gpu_tiled", accept_all<GatedUp>, gated_up_composed},
};

}  // namespace

template <>
std::span<const Impl<AddRmsNorm>> gpu_impls<AddRmsNorm>() {
  return kAddRmsNorm;
}
template <>
std::span<const Impl<RmsNorm>> gpu_impls<RmsNorm>() {
  return kRmsNorm;
}
template <>
std::span<const Impl<Linear>> gpu_impls<Linear>() {
  return kLinear;
}
template <>
std::span<const Impl<GatedUp>> gpu_impls<GatedUp>() {
  return kGatedUp;
}
template <>
std::span<const Impl<ArgMax>> gpu_impls<ArgMax>() {
  return kArgMax;
}
template <>
std::span<const Impl<DrawTokens>> gpu_impls<DrawTokens>() {
  return kDraw;
}
template <>
std::span<const Impl<TakeChosen>> gpu_impls<TakeChosen>() {
  return kTakeChosen;
}
template <>
std::span<const Impl<Embed>> gpu_impls<Embed>() {
  return kEmbed;
}
template <>
std::span<const Impl<GatherRows>> gpu_impls<GatherRows>() {
  return kGatherRows;
}
template <>
std::span<const Impl<ComputeRopeAngles>> gpu_impls<ComputeRopeAngles>() {
  return kAngles;
}
template <>
std::span<const Impl<QkNormRopeStore>> gpu_impls<QkNormRopeStore>() {
  return kStore;
}
template <>
std::span<const Impl<PagedAttention>> gpu_impls<PagedAttention>() {
  return kAttention;
}

}  // namespace atom::ops
