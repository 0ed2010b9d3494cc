// Which rows of a step a block of a prompt's attention computes. Device code only.
#pragma once
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {

// The sequence and the tile in it that piece of work `index` is, for a whole warp; false: none, there are
// fewer tiles. The last tiles of a sequence, which see most keys, come first.
__device__ inline bool find_tile(const Sequences& sequences, int index, int rows_per_tile, int& sequence,
                                 int& tile) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < sequences.count; base += 32) {
    const int i = base + lane;
    const int tiles = i < sequences.count ? (sequences.data[i].rows + rows_per_tile - 1) / rows_per_tile : 0;
    int end = tiles;  // inclusive sum over lanes
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += below;
    }
    const unsigned holders = __ballot_sync(~0u, index < end);
    if (holders != 0) {
      const int holder = __ffs(static_cast<int>(holders)) - 1;
      const int last = __shfl_sync(~0u, end, holder);
      sequence = base + holder;
      tile = last - 1 - index;
      return true;
    }
    index -= __shfl_sync(~0u, end, 31);
  }
  return false;
}

}  // namespace atom::ops::gpu_kernels
