// Rows of decodes whose keys are dealt to several blocks: which keys a block visits, what it leaves in
// scratch, and how the last block to finish adds up what all have left. Device code only.
#pragma once
#include "ops/gpu/elements.h"

namespace atom::ops::gpu_kernels {

constexpr int kMaxSplits = 64;

// Keys [begin, end) of a row that one split visits, and how many splits have any.
struct Share {
  int begin, end, active;
};

// Shares are whole tiles and have at least `least` keys.
__device__ inline Share share_of(int first, int end, int splits, int split, int tile, int least) {
  const int keys = end - first;
  const int per_split = (max((keys + splits - 1) / splits, least) + tile - 1) / tile * tile;
  const int begin = first + split * per_split;
  return {begin, min(begin + per_split, end), (keys + per_split - 1) / per_split};
}

// Scratch of one row and group of heads: of every split and head the largest score and the sum of
// exp(score - largest), then [split, head, head_dim] values weighted by the same.
struct Partials {
  float2* stats;
  float* sums;

  // Floats; even, so that pairs stay aligned.
  __host__ __device__ static int64_t floats(int splits, int group, int head_dim) {
    return int64_t{splits} * group * (head_dim + 2 + head_dim % 2);
  }
  __device__ Partials(float* all, int64_t place, int splits, int group, int head_dim)
      : stats(reinterpret_cast<float2*>(all + place * floats(splits, group, head_dim))),
        sums(reinterpret_cast<float*>(stats + splits * group)) {}
};

// After a block of kThreads has left its sums and stats. The last of `active` blocks, which `counter` tells,
// writes out[head, head_dim] = value_scale * sums / weights; a sink adds to the weight of its head. The
// counter ends at zero.
template <int kThreads, int kGroup>
__device__ void add_splits(const Partials& partials, int32_t* counter, int active, int group, int head_dim,
                           const float* sinks, float value_scale, float* out) {
  __shared__ float shares[kGroup][kMaxSplits];  // of each split in the sum over all
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == active - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int g = warp; g < group; g += kThreads / kWarp) {
    float top = -INFINITY;
    for (int p = lane; p < active; p += kWarp)
      top = fmaxf(top, load_fresh(&partials.stats[p * kGroup + g]).x);
    top = warp_max(top);
    float total = 0;
    for (int p = lane; p < active; p += kWarp) {
      const float2 stats = load_fresh(&partials.stats[p * kGroup + g]);
      shares[g][p] = expf(stats.x - top);
      total += shares[g][p] * stats.y;
    }
    total = warp_sum(total);
    if (sinks != nullptr) total += expf(sinks[g] - top);
    sync_warp();
    for (int p = lane; p < active; p += kWarp) shares[g][p] *= value_scale / total;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < group * head_dim; i += kThreads) {
    const int g = i / head_dim;
    const float* part = partials.sums + i;
    float sum = 0;
#pragma unroll 16
    for (int p = 0; p < active; ++p) sum += shares[g][p] * load_fresh(part + int64_t{p} * kGroup * head_dim);
    out[i] = sum;
  }
}

}  // namespace atom::ops::gpu_kernels
