// Which rows of a step a block of a prompt's attention computes. Device code only.
#pragma once
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {

// Where a piece of work lies among those of 32 sequences, one of each lane. `mine` and `end` differ by lane.
struct PieceHolder {
  int first;  // of the sequences
  int lane;   // that has the piece
  int mine;   // pieces of this lane's sequence
  int end;    // of those of this lane's sequence and of the lanes before it
  int index;  // of the piece, among those of the 32
};

// Finds piece `index` of those that the sequences have one after the other, `pieces_of` each, for a whole
// warp; false: there are fewer.
template <class PiecesOf>
__device__ bool find_holder(const Sequences& sequences, int index, const PiecesOf& pieces_of,
                            PieceHolder& at) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < sequences.count; base += 32) {
    const int i = base + lane;
    const int mine = i < sequences.count ? pieces_of(sequences.data[i]) : 0;
    int end = mine;  // inclusive sum over lanes
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += below;
    }
    const unsigned holders = __ballot_sync(~0u, index < end);
    if (holders != 0) {
      at = {base, __ffs(static_cast<int>(holders)) - 1, mine, end, index};
      return true;
    }
    index -= __shfl_sync(~0u, end, 31);
  }
  return false;
}

// The sequence and the tile in it that piece of work `index` is, for a whole warp; false: none, there are
// fewer tiles. The last tiles of a sequence, which see most keys, come first.
__device__ inline bool find_tile(const Sequences& sequences, int index, int rows_per_tile, int& sequence,
                                 int& tile) {
  PieceHolder at;
  const auto tiles_of = [&](const AttentionSequence& s) {
    return (s.rows + rows_per_tile - 1) / rows_per_tile;
  };
  if (!find_holder(sequences, index, tiles_of, at)) return false;
  const int last = __shfl_sync(~0u, at.end, at.lane);
  sequence = at.first + at.lane;
  tile = last - 1 - at.index;
  return true;
}

}  // namespace atom::ops::gpu_kernels
