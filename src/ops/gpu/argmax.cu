// The first column of the largest logit of every row.
// Bound: the logits read once, mostly from the second cache. Grid: (shares of the columns, rows); a candidate
// is a 64-bit key whose order is that of (value, then lower column), so that the reduction is a maximum. A
// thread keeps its first largest value itself: its columns ascend. The last block of a row to finish looks at
// the shares' best.
#include <algorithm>

#include "ops/argmax.h"
#include "ops/gpu/elements.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
constexpr int kMostShares = 32;
constexpr int64_t kShareColumns = 4096;  // at least
constexpr int64_t kBlocksEach = 4;       // of a processor
using Key = unsigned long long;

// Rises with the value, and among equals (zeros of either sign are) with a lower column. A value that is not
// less than +inf wins over all.
__device__ inline Key key_of(float value, int column) {
  const uint32_t bits = __float_as_uint(value == 0 ? 0.0f : value);
  const uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  const uint32_t high = value < INFINITY ? rising : 0xFFFFFFFFu;
  return static_cast<Key>(high) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(column));
}
__device__ inline int32_t column_of(Key key) {
  const auto high = static_cast<uint32_t>(key >> 32);
  constexpr uint32_t kNegativeInfinity = ~0xFF800000u;
  return high == 0xFFFFFFFFu || high <= kNegativeInfinity
             ? -1
             : static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(key));
}

__device__ Key warp_best(Key mine) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const Key other = shuffle_xor(mine, mask);
    mine = other > mine ? other : mine;
  }
  return mine;
}

// `best`: [rows, shares]; `counters`: [rows], zeros before and after. kEach: neighbouring columns of a load.
template <int kEach>
__global__ void __launch_bounds__(kThreads)
    argmax_kernel(int32_t* out, Key* best, int32_t* counters, const float* logits, int64_t stride, int n) {
  __shared__ Key of_warps[kWarps];
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.y, shares = gridDim.x, threads = kThreads * shares;
  const float* values = logits + row * stride;
  float top = -INFINITY;
  int column = 0;
  auto take = [&](float value, int i) {
    const float ordered = fminf(value, INFINITY);  // what is no number wins
    if (ordered > top) top = ordered, column = i;
  };
#pragma unroll 4
  for (int i = (blockIdx.x * kThreads + threadIdx.x) * kEach; i < n; i += threads * kEach) {
    if constexpr (kEach == 4) {
      const float4 v = *reinterpret_cast<const float4*>(values + i);
      take(v.x, i), take(v.y, i + 1), take(v.z, i + 2), take(v.w, i + 3);
    } else {
      take(values[i], i);
    }
  }
  Key mine = warp_best(key_of(top, column));
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  mine = warp_best(threadIdx.x < kWarps ? of_warps[threadIdx.x] : 0);
  if (shares > 1) {
    int finished = 0;
    if (threadIdx.x == 0) {
      best[row * shares + blockIdx.x] = mine;
      __threadfence();
      finished = atomicAdd(&counters[row], 1);
    }
    if (shuffle(finished, 0) != shares - 1) return;
    __threadfence();
    mine = 0;
    for (int s = threadIdx.x; s < shares; s += kWarp) {
      const Key other = load_fresh(&best[row * shares + s]);
      mine = other > mine ? other : mine;
    }
    mine = warp_best(mine);
    if (threadIdx.x == 0) counters[row] = 0;
  }
  if (threadIdx.x == 0) out[row] = column_of(mine);
}

}  // namespace

void argmax(Stream& stream, const ArgMax& op) {
  const int64_t rows = op.logits.dim(0), n = op.logits.dim(1);
  if (rows == 0) return;
  gpu::Queue& queue = stream.queue();
  // Rows are cut, so that every processor has some blocks.
  const int64_t wanted = std::min<int64_t>(kMostShares, kBlocksEach * queue.processors() / rows);
  const int64_t shares = std::clamp<int64_t>(n / kShareColumns, 1, std::max<int64_t>(1, wanted));
  auto* best = static_cast<Key*>(queue.scratch(rows * shares * static_cast<int64_t>(sizeof(Key))));
  const bool in_fours = n % 4 == 0 && op.logits.strides[0] % 4 == 0 && aligned16(op.logits.data);
  launch(queue, in_fours ? argmax_kernel<4> : argmax_kernel<1>,
         dim3(static_cast<unsigned>(shares), static_cast<unsigned>(rows)), dim3(kThreads), 0,
         op.out.as<int32_t>(), best, queue.counters(), op.logits.as<float>(), op.logits.strides[0],
         static_cast<int>(n));
}

}  // namespace atom::ops::gpu_kernels
