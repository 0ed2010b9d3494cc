// The indexer's choice by a cluster of blocks per row, which read each other's counts in shared memory.
// Bound: latency; five barriers of a cluster.
#include <algorithm>
#include <bit>

#include "ops/cuda/mma.h"
#include "ops/gpu/index_choose.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 512;
constexpr unsigned kMaxBlocks = 8;  // of a cluster, for any device

__device__ inline int remote(const int* p, int block) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(block));
  int value;
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

// A barrier of all threads of a cluster in two parts. Only shared memory is ordered: the barrier's own
// release would wait until writes to the device's memory are done.
__device__ inline void arrive() {
  asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void await_others() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
}

struct Cluster {
  int this_block, blocks;

  __device__ Cluster() {
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(this_block));
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  }
  __device__ int rank() const { return this_block; }
  __device__ int size() const { return blocks; }
  __device__ static void join() {
    arrive();
    await_others();
  }
  __device__ int sum(const int* value) const {
    int values[kMaxBlocks];
#pragma unroll
    for (int b = 0; b < static_cast<int>(kMaxBlocks); ++b) values[b] = b < blocks ? remote(value, b) : 0;
    int total = 0;
#pragma unroll
    for (int b = 0; b < static_cast<int>(kMaxBlocks); ++b) total += values[b];
    return total;
  }
  __device__ Found before(const Found& mine) const {
    __shared__ Found found;
    if (threadIdx.x == 0) found = mine;
    join();
    Found total = {0, 0};
#pragma unroll
    for (int b = 0; b < static_cast<int>(kMaxBlocks) - 1; ++b) {
      if (b >= this_block) break;
      total.ties += remote(&found.ties, b);
      total.better += remote(&found.better, b);
    }
    arrive();
    return total;
  }
  // Others may still read what `before` left.
  __device__ static void leave() { await_others(); }
};

__global__ void __launch_bounds__(kThreads) cluster_choose_kernel(IndexArguments a) {
  const Cluster cluster;
  choose<kThreads, 8>(a, static_cast<int>(blockIdx.x) / cluster.size(), cluster);
}

}  // namespace

void choose_by_cluster(gpu::Queue& queue, const IndexArguments& a, unsigned rows) {
  const unsigned blocks = std::min(kMaxBlocks, std::bit_floor(static_cast<unsigned>(a.splits)));
  if (blocks == 1 || queue.capability() < 90) return choose_by_block(queue, a, rows);
  if (queue.planning()) return;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(rows * blocks);
  config.blockDim = dim3(kThreads);
  config.stream = native_stream(queue);
  config.attrs = attributes;
  config.numAttrs = 2;
  GPU_CHECK(cudaLaunchKernelEx(&config, cluster_choose_kernel, a));
}

}  // namespace atom::ops::gpu_kernels
