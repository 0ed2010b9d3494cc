// The lists of latent attention and the indexer on GPUs, best first.
#include "ops/gpu/latent_kernels.h"

namespace atom::ops {
namespace {

using namespace gpu_kernels;

constexpr Impl<LatentStore> kLatentStore[] = {{"latent_store.gpu", accept_all<LatentStore>, latent_store}};
constexpr Impl<LatentAttention> kLatentAttention[] = {
    {"latent_attention.expanded_mma", refuse_latent_expanded, latent_expanded},
    {"latent_attention.mma", refuse_latent_mma, latent_attention_mma},
    {"latent_attention.gpu", accept_all<LatentAttention>, latent_attention_plain},
};
constexpr Impl<HeadProject> kHeadProject[] = {
    {"head_project.gpu_rows", refuse_head_rows, head_project_rows},
    {"head_project.mma", refuse_head_mma, head_project_mma},
    {"head_project.gpu_tiled", accept_all<HeadProject>, head_project_tiled},
};
constexpr Impl<IndexStore> kIndexStore[] = {{"index_store.gpu", accept_all<IndexStore>, index_store}};
constexpr Impl<IndexSelect> kIndexSelect[] = {
    {"index_select.mma", refuse_index_mma, index_select_mma},
    {"index_select.gpu", accept_all<IndexSelect>, index_select_plain},
};

}  // namespace

template <>
std::span<const Impl<LatentStore>> gpu_impls<LatentStore>() {
  return kLatentStore;
}
template <>
std::span<const Impl<LatentAttention>> gpu_impls<LatentAttention>() {
  return kLatentAttention;
}
template <>
std::span<const Impl<HeadProject>> gpu_impls<HeadProject>() {
  return kHeadProject;
}
template <>
std::span<const Impl<IndexStore>> gpu_impls<IndexStore>() {
  return kIndexStore;
}
template <>
std::span<const Impl<IndexSelect>> gpu_impls<IndexSelect>() {
  return kIndexSelect;
}

}  // namespace atom::ops
