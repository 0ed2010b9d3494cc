// Grouped products on Hopper: which matrices, which kernel, and activations as they want them.
#include "ops/cuda/grouped_kernel.h"
#include "ops/cuda/packed_product.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 128;

__device__ float block_max(float value) {
  __shared__ float of_warp[kThreads / 32];
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) value = fmaxf(value, of_warp[w]);
  return value;
}

// A block places a row, or kThreads groups of 8 of one if no number of the whole row is needed. A thread
// places 8 neighbours of the result.
template <int kSpread, class X>
__global__ void __launch_bounds__(kThreads) place_kernel(PlaceRows a) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x;
  const float* x = a.x + row * a.x_stride;
  float factor = 1, divisor = 1;
  if constexpr (std::is_same_v<X, F16>) {
    float largest = 0;
    for (int c = threadIdx.x * 4; c < a.cols; c += kThreads * 4) {
      const float4 v = *reinterpret_cast<const float4*>(x + c);
      largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    }
    const F16Range range(block_max(largest));
    factor = range.factor;
    divisor = range.divisor;
  }
  const int uses = a.slot_of != nullptr ? a.routing.k : 1;
  auto slot_of = [&](int i) { return a.slot_of != nullptr ? a.slot_of[row * uses + i] : row; };
  if (blockIdx.y == 0) {
    for (int i = threadIdx.x; i < uses; i += kThreads) {
      const int slot = slot_of(i);
      if (slot >= 0)
        a.slots[slot] = {divisor, a.routing.weights != nullptr ? a.routing.weight(row * uses + i) : 1};
    }
  }
  uint4* out = static_cast<uint4*>(a.out);
  const int groups = a.cols / 8;
  for (int v = blockIdx.y * kThreads + threadIdx.x; v < groups; v += gridDim.y * kThreads) {
    const float* from = x + (v >> kSpread << kSpread) * 8 + (v & ((1 << kSpread) - 1));
    float value[8];
    if constexpr (kSpread == 0) {
      const float4 low = reinterpret_cast<const float4*>(from)[0],
                   high = reinterpret_cast<const float4*>(from)[1];
      const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = all[i];
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = from[i << kSpread] * factor;
    }
    const uint4 placed = {pack(value[0], value[1], X{}), pack(value[2], value[3], X{}),
                          pack(value[4], value[5], X{}), pack(value[6], value[7], X{})};
    for (int i = 0; i < uses; ++i) {
      const int slot = slot_of(i);
      if (slot >= 0) out[int64_t{slot} * groups + v] = placed;
    }
  }
}

int blocks_of(int tile) { return tile > 64 ? 1 : 3; }  // at most

}  // namespace

const char* refuse_grouped_matrix(const Stream& stream, const WeightPart& part) {
  if (stream.queue().capability() != 90) return "for Hopper only";
  if (part.data.dtype == DType::mxfp4_8x64) return nullptr;
  if (part.data.dtype == DType::f4e2m1x2) return "E2M1 in pieces only";
  return refuse_packed_matrix(stream, part);
}

int64_t partials_bytes(const Stream& stream, int tile) {
  const int64_t blocks = int64_t{stream.queue().processors()} * blocks_of(tile);
  const int64_t rows = tile > 64 ? 256 : 128;  // of w, at most
  return blocks * 2 * rows * tile * static_cast<int64_t>(sizeof(float));
}

int tile_of_rows(int64_t rows) {
  int tile = 8;
  while (tile < rows && tile < 128) tile *= 2;
  return tile;
}

void place_grouped(Stream& stream, const PlaceRows& place, DType type, Half half) {
  // Few rows: more blocks of each.
  const int64_t wanted = half == Half::f16 ? 1 : ceil_div(4 * stream.queue().processors(), place.rows);
  const int64_t y = std::min(wanted, ceil_div(place.cols / 8, kThreads));
  auto start = [&](auto kernel) {
    launch(stream.queue(), kernel, dim3(static_cast<unsigned>(place.rows), static_cast<unsigned>(y)),
           dim3(kThreads), 0, place);
  };
  if (half == Half::f16) return start(place_kernel<2, F16>);
  if (type == DType::mxfp4_8x64) return start(place_kernel<2, Bf16>);
  if (type == DType::f8e4m3) return start(place_kernel<1, Bf16>);
  start(place_kernel<0, Bf16>);
}

void start_grouped(Stream& stream, const GroupedProduct& product, const void* x, int64_t x_bound, int tile) {
  if (product.type == DType::f8e4m3) return start_grouped_fp8(stream, product, x, x_bound, tile);
  if (product.half == Half::f16) return start_piece_product(stream, product, x, tile);
  if (product.type == DType::mxfp4_8x64) return start_grouped_pieces(stream, product, x, x_bound, tile);
  start_grouped_bf16(stream, product, x, x_bound, tile);
}

}  // namespace atom::ops::gpu_kernels
