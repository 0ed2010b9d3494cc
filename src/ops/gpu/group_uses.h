// Uses of experts grouped by expert, on the device. Device code only.
#pragma once
#include <algorithm>

#include "ops/gpu/experts.h"

namespace atom::ops::gpu_kernels {

// Uses order[begin, begin + count), all of one expert; count 0: none. It is the `part`-th of the expert's
// `parts` tiles, which stand together.
struct UseTile {
  int expert, begin, count, part, parts;
};

inline constexpr int kMaxGroupedExperts = 4096;

// The most tiles that `uses` uses of `experts` experts can make.
inline int64_t most_tiles(int64_t uses, int64_t experts, int64_t tile) {
  return std::min(uses, uses / tile + experts);
}
// Sorts the uses of this rank's experts by expert and cuts them into tiles of at most `tile`. Tiles that are
// not needed, up to `tile_bound` (most_tiles), have count 0. made: how many tiles there are, and uses in
// them.
void group_uses(Stream& stream, UseTile* tiles, int64_t tile_bound, int32_t* order, const Experts& experts,
                const Routing& routing, int64_t uses, int tile, int32_t* made, int32_t* slot_of = nullptr);
// out[token] = the sum of y[use] over the token's uses; y is [uses, cols of out].
void sum_uses(Stream& stream, const Tensor& out, const float* y, const Experts& experts,
              const Routing& routing, bool accumulate);

}  // namespace atom::ops::gpu_kernels
