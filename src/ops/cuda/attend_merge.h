// How the last block of decode attention adds up what several clusters have of a row. Device code only.
#pragma once
#include "ops/cuda/attend_block.h"

namespace atom::ops::gpu_kernels {
namespace {

// The teams of a row have left their sums; the last block adds them all.
template <int kDim>
__device__ void merge_teams(const DecodeArguments& a, int64_t pair, int active, int row, int group, int head0,
                            float* buffer, const float* gate) {
  __shared__ float shares[kHeads][kMaxSplits];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int stride = heads_of_block(a.heads_per_kv);
  const int teams = a.splits / a.team;
  const float* base = a.partials + pair * partial_floats(teams, stride, kDim);
  const auto* stats = reinterpret_cast<const float2*>(base);
  const auto* sums = reinterpret_cast<const float4*>(base + stats_floats(teams, stride));
#pragma unroll
  for (int r = 0; r < kHeads / kWarps; ++r) {
    const int head = warp + r * kWarps;
    if (head >= group) break;
    float2 mine[kMaxSplits / 32];
    float top = kNone, total = 0;
#pragma unroll
    for (int i = 0; i < kMaxSplits / 32; ++i) {
      const int p = lane + 32 * i;
      mine[i] = p < active ? load_fresh(stats + p * stride + head) : float2{kNone, 0};
      top = fmaxf(top, mine[i].x);
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < kMaxSplits / 32; ++i) {
      mine[i].x = power_of_two(mine[i].x - top);
      total += mine[i].x * mine[i].y;
    }
    total = warp_sum(total);
    if (a.sinks != nullptr) total += power_of_two(a.sinks[head0 + head] * kLog2e - top);
#pragma unroll
    for (int i = 0; i < kMaxSplits / 32; ++i) shares[head][lane + 32 * i] = mine[i].x * a.value_scale / total;
  }
  __syncthreads();
  constexpr int kFours = kDim / 4;
  const int items = group * kFours, parts = max(1, kThreads / items);
  const int part = parts > 1 ? static_cast<int>(threadIdx.x) / items : 0;
  auto* partial = reinterpret_cast<float4*>(buffer);
#pragma unroll 1
  for (int i = parts > 1 ? threadIdx.x % items : threadIdx.x; i < items && part < parts; i += kThreads) {
    float4 sum = {};
#pragma unroll 8
    for (int p = part; p < active; p += parts) {
      sum = add_scaled(sum, shares[i / kFours][p], load_fresh(sums + int64_t{p} * stride * kFours + i));
    }
    partial[part * items + i] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < items; i += kThreads) {
    float4 sum = partial[i];
#pragma unroll 1
    for (int p = 1; p < parts; ++p) sum = add(sum, partial[p * items + i]);
    if (gate != nullptr) {
      const float4 g = reinterpret_cast<const float4*>(gate)[i];
      sum = {gated(sum.x, g.x), gated(sum.y, g.y), gated(sum.z, g.z), gated(sum.w, g.w)};
    }
    store_four<kDim>(a, row, head0, i, sum);
  }
}

}  // namespace
}  // namespace atom::ops::gpu_kernels
