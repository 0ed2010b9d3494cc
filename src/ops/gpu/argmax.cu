// The first column of the largest logit of every row.
// Bound: the logits read once, mostly from the second cache. Grid: one block per row; a candidate is a 64-bit
// key whose order is that of (value, then lower column), so that the reduction is a maximum.
#include "ops/argmax.h"
#include "ops/gpu/elements.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 1024;

// Rises with the value, and among equals (zeros of either sign are) with a lower column. A value that is not less than +inf wins over
// all.
__device__ inline uint64_t key_of(float value, int column) {
  const uint32_t bits = __float_as_uint(value == 0 ? 0.0f : value);
  const uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  const uint32_t high = value < INFINITY ? rising : 0xFFFFFFFFu;
  return static_cast<uint64_t>(high) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(column));
}

__global__ void __launch_bounds__(kThreads)
    argmax_kernel(int32_t* out, const float* logits, int64_t stride, int n) {
  __shared__ unsigned long long best;
  let_next_start();
  wait_for_previous();
  const float* row = logits + blockIdx.x * stride;
  if (threadIdx.x == 0) best = 0;
  __syncthreads();
  uint64_t mine = 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < n; i += kThreads) mine = max(mine, key_of(row[i], i));
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) mine = max(mine, shuffle_xor(mine, mask));
  if (threadIdx.x % kWarp == 0) atomicMax(&best, static_cast<unsigned long long>(mine));
  __syncthreads();
  if (threadIdx.x != 0) return;
  const auto high = static_cast<uint32_t>(best >> 32);
  constexpr uint32_t kNegativeInfinity = ~0xFF800000u;
  out[blockIdx.x] = high == 0xFFFFFFFFu || high <= kNegativeInfinity
                        ? -1
                        : static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(best));
}

}  // namespace

void argmax(Stream& stream, const ArgMax& op) {
  if (op.logits.dim(0) == 0) return;
  launch(stream.queue(), argmax_kernel, dim3(static_cast<unsigned>(op.logits.dim(0))), dim3(kThreads), 0,
         op.out.as<int32_t>(), op.logits.as<float>(), op.logits.strides[0],
         static_cast<int>(op.logits.dim(1)));
}

}  // namespace atom::ops::gpu_kernels
