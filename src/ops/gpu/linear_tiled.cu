// The product of any shape in float32: the plain tiled algorithm, oracle of the faster entries.
//   out[t, r] = x[t] · w[r] + bias[r]
// Bound: flops. Grid: one block per 64 x 64 tile of out, each thread 4 x 4 of it; 16 columns at a time in
// shared memory. Weights with scales are widened in scratch.
#include "ops/gpu/elements.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kEach = 4;

template <class T>
__global__ void __launch_bounds__(kThreads)
    tiled_kernel(float* out, int64_t out_stride, const float* x, int64_t x_stride, const T* w,
                 int64_t w_stride, const float* bias, int64_t tokens, int64_t rows, int cols) {
  __shared__ float xs[kDepth][kTile + 4], ws[kDepth][kTile + 4];
  let_next_start();
  wait_for_previous();
  const int64_t token0 = int64_t{blockIdx.y} * kTile, row0 = int64_t{blockIdx.x} * kTile;
  const int tx = threadIdx.x % (kTile / kEach), ty = threadIdx.x / (kTile / kEach);
  const int line = threadIdx.x / kEach, depth = threadIdx.x % kEach * 4;  // what this thread loads
  float sums[kEach][kEach] = {};
  for (int k0 = 0; k0 < cols; k0 += kDepth) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = k0 + depth + i;
      xs[depth + i][line] = token0 + line < tokens && k < cols ? x[(token0 + line) * x_stride + k] : 0;
      ws[depth + i][line] = row0 + line < rows && k < cols ? widen(w[(row0 + line) * w_stride + k]) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const float4 p = *reinterpret_cast<const float4*>(&xs[k][ty * kEach]);
      const float4 q = *reinterpret_cast<const float4*>(&ws[k][tx * kEach]);
      const float a[kEach] = {p.x, p.y, p.z, p.w}, b[kEach] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kEach; ++i) {
    const int64_t t = token0 + ty * kEach + i;
    for (int j = 0; j < kEach; ++j) {
      const int64_t r = row0 + tx * kEach + j;
      if (t < tokens && r < rows) out[t * out_stride + r] = sums[i][j] + (bias == nullptr ? 0 : bias[r]);
    }
  }
}

// `scratch_begin` bytes of scratch are in use already.
void tiled_behind(Stream& stream, const Linear& op, int64_t scratch_begin) {
  const int64_t tokens = op.x.dim(0), cols = op.w.cols;
  if (tokens == 0) return;
  int64_t row = 0;
  for (const WeightPart& part : op.w.parts) {
    const int64_t rows = part.data.dim(0);
    Tensor w = part.data;
    if (part.scale) {
      auto* memory = static_cast<std::byte*>(
          stream.queue().scratch(scratch_begin + rows * cols * static_cast<int64_t>(sizeof(float))));
      w = make_tensor(memory + scratch_begin, DType::f32, {rows, cols}, op.x.device);
      widen_part(stream, w, part);
    }
    with_element(w.dtype, [&](auto element) {
      using T = decltype(element);
      launch(stream.queue(), tiled_kernel<T>, dim3(ceil_div(rows, kTile), ceil_div(tokens, kTile)),
             dim3(kThreads), 0, op.out.as<float>() + row, op.out.strides[0], op.x.as<float>(),
             op.x.strides[0], w.as<T>(), w.strides[0], op.bias ? op.bias.as<float>() + row : nullptr, tokens,
             rows, static_cast<int>(cols));
    });
    row += rows;
  }
}

}  // namespace

void linear_tiled(Stream& stream, const Linear& op) { tiled_behind(stream, op, 0); }

void gated_up_composed(Stream& stream, const GatedUp& op) {
  const int64_t tokens = op.x.dim(0);
  if (tokens == 0) return;
  const int64_t both_bytes = aligned(tokens * op.w.rows * static_cast<int64_t>(sizeof(float)));
  // The product may ask for more scratch behind this; the address is that of all scratch.
  void* memory = stream.queue().scratch(both_bytes);
  const Tensor both = make_tensor(memory, DType::f32, {tokens, op.w.rows}, op.out.device);
  tiled_behind(stream, {both, op.x, op.w, op.bias, op.precision}, both_bytes);
  silu_mul(stream, op.out, both);
}

}  // namespace atom::ops::gpu_kernels
