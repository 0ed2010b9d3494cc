// Sums over the threads of a block. Device code only.
#pragma once
#include "ops/gpu/elements.h"

namespace atom::ops::gpu_kernels {

// The sum of every thread's `value`, on all of them. To be called again only after a barrier, or with another
// kCall: each has shared memory of its own.
template <int kThreads, int kCall = 0>
__device__ float block_sum(float value) {
  __shared__ float sums[kThreads / kWarp];
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < kThreads / kWarp; ++i) total += sums[i];
  return total;
}

}  // namespace atom::ops::gpu_kernels
