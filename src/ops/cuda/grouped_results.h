// What becomes of the sums of a grouped product: those of several blocks are added, then they are stored.
// Device code only.
#pragma once
#include "ops/cuda/grouped_widen.h"

namespace atom::ops::gpu_kernels {

#if ATOM_HOPPER

// This block has the sums of a part of the columns of `at`. True in the block that is the last to have its
// part; it then has the sums of all.
template <int kWarps, int kM, int kTerms>
__device__ bool merge(const GroupedProduct& a, const Walk& at, float (&sums)[kM][kTerms], int warp,
                      int lane) {
  const int64_t first = int64_t{at.item} * a.k_stages;
  const int begin = at.block_of(first), end = at.block_of(first + a.k_stages - 1) + 1;
  auto part_of = [&](int block) {  // a block begins within one item and ends within another
    const int slot = 2 * block + (at.begin_of(block) >= first ? 0 : 1);
    return a.partials + (int64_t{slot} * kM * kTerms * kWarps + warp) * 32 + lane;
  };
  float* mine = part_of(blockIdx.x);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < kTerms; ++i) mine[(m * kTerms + i) * kWarps * 32] = sums[m][i];
  }
  __threadfence();
  sync_warp();
  int before = 0;
  int32_t* counter = a.counters + begin * kWarps + warp;
  if (lane == 0) before = atomicAdd(counter, 1);
  if (shuffle(before, 0) != end - begin - 1) return false;
  __threadfence();
  if (lane == 0) *counter = 0;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < kTerms; ++i) sums[m][i] = 0;
  }
#pragma unroll(kM* kTerms <= 16 ? 4 : 1)
  for (int block = begin; block < end; ++block) {
    const float* part = part_of(block);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < kTerms; ++i) sums[m][i] += load_fresh(part + (m * kTerms + i) * kWarps * 32);
    }
  }
  return true;
}

// act(gate, up) as Experts::activate has it, with the fast exponential and division: what follows rounds to
// 16 bits.
__device__ inline float activate_fast(const Experts& e, float gate, float up) {
  if (e.activation == ExpertActivation::silu) return __fdividef(gate, 1 + __expf(-gate)) * up;
  gate = fminf(gate, e.limit);
  up = fminf(fmaxf(up, -e.limit), e.limit);
  return __fdividef(gate, 1 + __expf(-e.alpha * gate)) * (up + 1);
}
__device__ inline uint16_t half_bits(float x, Half half) {
  return half == Half::f16 ? static_cast<uint16_t>(pack(x, 0, F16{}))
                           : static_cast<uint16_t>(pack(x, 0, Bf16{}));
}

// Stores the results of two rows of w, gate and up of one if gated, for the row of x at `slot`. Rows of w
// beyond the end are left out.
__device__ inline void store_pair(const GroupedProduct& a, int slot, float weight, const int (&row)[2],
                                  const float (&bias)[2], float first, float second) {
  const int64_t out_row = a.to_inner || a.order == nullptr ? slot : a.order[slot];
  if (!a.gated) {
    float* out = static_cast<float*>(a.out) + out_row * a.out_stride;
    if (row[0] < a.rows) out[row[0]] = first + weight * bias[0];
    if (row[1] < a.rows) out[row[1]] = second + weight * bias[1];
    return;
  }
  if (row[0] >= a.rows) return;
  const float value = activate_fast(a.experts, first + bias[0], second + bias[1]);
  if (a.to_inner) {
    static_cast<uint16_t*>(a.out)[out_row * a.out_stride + spread_place(row[0], a.inner_spread)] =
        half_bits(value * weight, a.inner_half);
  } else {
    static_cast<float*>(a.out)[out_row * a.out_stride + row[0]] = value;
  }
}
// Of the rows of one of the two in a pair.
__device__ inline float bias_of(const GroupedProduct& a, int expert, int row, int which) {
  return row < a.rows ? (which == 1 && a.gated ? a.up_bias : a.bias).of(expert, row) : 0;
}

template <class T, int kN>
__device__ void store(const GroupedProduct& a, const Walk& at, const float (&sums)[Cut<T, kN>::kM][kN / 2],
                      int warp, int lane) {
  constexpr int kM = Cut<T, kN>::kM, kHalfRows = Cut<T, kN>::kHalfRows;
  int row[kM][2];
  float bias[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int slab = (warp / 4 * kM + m) * 4 + warp % 4;  // of 16 rows of the tile
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row[m][h] = a.gated ? at.row_tile * kHalfRows + slab * 8 + lane / 4
                          : at.row_tile * 2 * kHalfRows + slab * 16 + h * 8 + lane / 4;
      bias[m][h] = bias_of(a, at.tile.expert, row[m][h], h);
    }
  }
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {  // this thread's rows of x
    const int n = i / 2 * 8 + lane % 4 * 2 + i % 2, slot = at.tile.begin + n;
    if (n >= at.tile.count) continue;
    const float weight = a.slots[slot].y;
#pragma unroll
    for (int m = 0; m < kM; ++m)
      store_pair(a, slot, weight, row[m], bias[m], sums[m][i / 2 * 4 + i % 2],
                 sums[m][i / 2 * 4 + 2 + i % 2]);
  }
}

#endif  // ATOM_HOPPER

}  // namespace atom::ops::gpu_kernels
