// The indexer's choice by a cluster of blocks per row, which read each other's counts in shared memory.
// Bound: latency; five barriers of a cluster.
#include <algorithm>
#include <bit>

#include "ops/cuda/cluster.h"
#include "ops/gpu/index_choose.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 512;
constexpr unsigned kMaxBlocks = 8;  // of a cluster, for any device

struct Cluster {
  int this_block, blocks;

  __device__ Cluster() : this_block(rank_in_cluster()), blocks(blocks_of_cluster()) {}
  __device__ int rank() const { return this_block; }
  __device__ int size() const { return blocks; }
  __device__ static void join() {
    arrive_with_shared();
    await_shared();
  }
  __device__ int sum(const int* value) const {
    int values[kMaxBlocks];
#pragma unroll
    for (int b = 0; b < static_cast<int>(kMaxBlocks); ++b) values[b] = b < blocks ? load_from(value, b) : 0;
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
      total.ties += load_from(&found.ties, b);
      total.better += load_from(&found.better, b);
    }
    arrive_with_shared();
    return total;
  }
  // Others may still read what `before` left.
  __device__ static void leave() { await_shared(); }
};

__global__ void __launch_bounds__(kThreads) cluster_choose_kernel(IndexArguments a) {
  const Cluster cluster;
  choose<kThreads, 8>(a, static_cast<int>(blockIdx.x) / cluster.size(), cluster);
}

}  // namespace

void choose_by_cluster(gpu::Queue& queue, const IndexArguments& a, unsigned rows) {
  const unsigned blocks = std::min(kMaxBlocks, std::bit_floor(static_cast<unsigned>(a.splits)));
  if (blocks == 1 || queue.capability() < 90) return choose_by_block(queue, a, rows);
  launch_clusters(queue, cluster_choose_kernel, dim3(rows * blocks), dim3(blocks), dim3(kThreads), 0, a);
}

}  // namespace atom::ops::gpu_kernels
