// The build without a GPU backend: every list is empty.
#include "ops/indexer.h"
#include "ops/latent_attention.h"

namespace atom::ops {

template <>
std::span<const Impl<LatentStore>> gpu_impls<LatentStore>() {
  return {};
}
template <>
std::span<const Impl<LatentAttention>> gpu_impls<LatentAttention>() {
  return {};
}
template <>
std::span<const Impl<HeadProject>> gpu_impls<HeadProject>() {
  return {};
}
template <>
std::span<const Impl<IndexStore>> gpu_impls<IndexStore>() {
  return {};
}
template <>
std::span<const Impl<IndexSelect>> gpu_impls<IndexSelect>() {
  return {};
}

}  // namespace atom::ops
