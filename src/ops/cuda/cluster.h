// Blocks of a cluster, which see each other's shared memory (compute capability 9.0). For older devices these
// stand for a cluster of one block. For CUDA's compiler only.
#pragma once
#include <iterator>
#include <utility>

#include "ops/cuda/mma.h"

namespace atom::ops::gpu_kernels {

// launch() with clusters of so many blocks.
template <class... Parameters, class... Arguments>
void launch_clusters(gpu::Queue& queue, void (*kernel)(Parameters...), dim3 grid, dim3 cluster, dim3 block,
                     size_t shared, Arguments&&... arguments) {
  if (queue.planning()) return;
  queue.introduce(reinterpret_cast<const void*>(kernel));
  const auto common = gpu::launch_attributes();
  cudaLaunchAttribute attributes[] = {common[0], common[1], {}};
  attributes[2].id = cudaLaunchAttributeClusterDimension;
  attributes[2].val.clusterDim = {cluster.x, cluster.y, cluster.z};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = gpu::native_stream(queue);
  config.attrs = attributes;
  config.numAttrs = std::size(attributes);
  GPU_CHECK(
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...));
}

#if __CUDA_ARCH__ >= 900

__device__ inline int rank_in_cluster() {
  int r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ inline int blocks_of_cluster() {
  int r;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r));
  return r;
}

// A barrier in two parts, of all threads of the cluster that have not left; what they wrote before is seen
// behind it.
__device__ inline void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The same for shared memory alone: the release above waits until writes to the device's memory are done.
__device__ inline void arrive_with_shared() {
  asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void await_shared() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
}

// The variable that another block has at the place of `p`.
__device__ inline uint32_t address_in(const void* p, int rank) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(shared_address(p)), "r"(rank));
  return r;
}
__device__ inline int load_from(const int* p, int rank) {
  int v;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(address_in(p, rank)) : "memory");
  return v;
}
__device__ inline float2 load_from(const float2* p, int rank) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address_in(p, rank)));
  return v;
}
__device__ inline float4 load_from(const float4* p, int rank) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address_in(p, rank)));
  return v;
}

#else

__device__ inline int rank_in_cluster() { return 0; }
__device__ inline int blocks_of_cluster() { return 1; }
__device__ inline void arrive_at_cluster() {}
__device__ inline void await_cluster() {}
__device__ inline void arrive_with_shared() { __syncthreads(); }
__device__ inline void await_shared() {}
template <class T>
__device__ inline T load_from(const T* p, int) {
  return *p;
}

#endif

}  // namespace atom::ops::gpu_kernels
