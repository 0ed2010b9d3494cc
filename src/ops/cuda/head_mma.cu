// Products head by head with the expansion of latent attention, many rows, on tensor cores.
//   as head_project.cu, with x rounded to the weight's type
// Bound: flops. Grid: (64 outputs, 64 rows of x, head); 4 warps with 16 rows each.
#include "ops/cuda/mma.h"
#include "ops/gpu/latent_kernels.h"
#include "ops/gpu/stored.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 128, kTile = 64, kDepth = 64;
constexpr int kStride = kDepth + 8;  // 8 matrices' rows fall into different banks

struct HeadArguments {
  float* out;
  const float* x;
  StoredMatrix w;
  int64_t out_stride, x_stride;            // of rows
  int64_t out_head_stride, x_head_stride;  // of heads
  int tokens, head_rows, first, outs, inner;
};

// 8 neighbours in a row, which lie under one scale, as the product takes them.
template <class T>
__device__ inline uint4 stored_run(const StoredMatrix& m, int64_t row, int col, T) {
  return *reinterpret_cast<const uint4*>(m.data + row * m.stride + col * sizeof(T));
}
__device__ inline uint4 stored_run(const StoredMatrix& m, int64_t row, int col, Fp8 element) {
  const uint2 raw = *reinterpret_cast<const uint2*>(m.data + row * m.stride + col);
  const float scale = stored_scale(m, row, col, element);
  auto value = [&](uint32_t word, int byte) {
    return widen(Fp8{static_cast<uint8_t>(word >> byte * 8)}) * scale;
  };
  return {pack(value(raw.x, 0), value(raw.x, 1), Bf16{}), pack(value(raw.x, 2), value(raw.x, 3), Bf16{}),
          pack(value(raw.y, 0), value(raw.y, 1), Bf16{}), pack(value(raw.y, 2), value(raw.y, 3), Bf16{})};
}

// W: as stored; T: in which products are made.
template <class W, class T, bool kTransposed>
__global__ void __launch_bounds__(kThreads) head_kernel(HeadArguments a) {
  __shared__ __align__(16) T xs[kTile * kStride], ws[kTile * kStride];
  if (kTransposed) let_next_start();
  wait_for_previous();
  if (!kTransposed) let_next_start();
  const int h = blockIdx.z, token0 = blockIdx.y * kTile, out0 = blockIdx.x * kTile;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* x = a.x + h * a.x_head_stride;
  const int64_t first_row = int64_t{h} * a.head_rows + a.first;
  float sums[kTile / 8][4] = {};
  for (int k0 = 0; k0 < a.inner; k0 += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth / 8; i += kThreads) {
      const int line = i / (kDepth / 8), at = i % (kDepth / 8) * 8;
      uint4 packed = {0, 0, 0, 0};
      if (token0 + line < a.tokens && k0 + at < a.inner) {
        const auto* from = reinterpret_cast<const float4*>(x + (token0 + line) * a.x_stride + k0 + at);
        const float4 p = from[0], q = from[1];
        packed = {pack(p.x, p.y, T{}), pack(p.z, p.w, T{}), pack(q.x, q.y, T{}), pack(q.z, q.w, T{})};
      }
      *reinterpret_cast<uint4*>(xs + line * kStride + at) = packed;
      // Lines of w are outputs if transposed, else the inner dimension.
      const int row = (kTransposed ? out0 : k0) + line, column = (kTransposed ? k0 : out0) + at;
      const bool valid = row < (kTransposed ? a.outs : a.inner) && column < (kTransposed ? a.inner : a.outs);
      uint4 raw = {0, 0, 0, 0};
      if (valid) raw = stored_run(a.w, first_row + row, column, W{});
      *reinterpret_cast<uint4*>(ws + line * kStride + at) = raw;
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      uint32_t left[4];
      load_matrices(left, xs + (warp * 16 + lane % 16) * kStride + step * 16 + lane / 16 * 8);
#pragma unroll
      for (int n = 0; n < kTile / 16; ++n) {
        uint32_t b[4];
        if constexpr (kTransposed) {
          load_matrices(b, ws + (n * 16 + lane / 16 * 8 + lane % 8) * kStride + step * 16 + lane / 8 % 2 * 8);
        } else {
          load_turned_matrices(b, ws + (step * 16 + lane % 16) * kStride + n * 16 + lane / 16 * 8);
        }
        multiply(sums[2 * n], left, b[0], b[1], T{});
        multiply(sums[2 * n + 1], left, b[2], b[3], T{});
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = token0 + warp * 16 + lane / 4 + 8 * i;
    if (t >= a.tokens) continue;
    float* out = a.out + t * a.out_stride + h * a.out_head_stride;
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int o = out0 + n * 8 + lane % 4 * 2 + e;
        if (o < a.outs) out[o] = sums[n][2 * i + e];
      }
    }
  }
}

}  // namespace

const char* refuse_head_mma(const Stream& stream, const HeadProject& op) {
  if (op.precision != Precision::fast) return "rounds activations";
  if (stream.queue().capability() < 80) return "needs compute capability 8.0";
  const Tensor& w = op.w.parts[0].data;
  if (w.dtype != DType::bf16 && w.dtype != DType::f16 && w.dtype != DType::f8e4m3) {
    return "for bf16, f16 and E4M3 weights only";
  }
  const BlockScales& scale = op.w.parts[0].scale;
  if (scale && !scale.steady_over(8, op.w.cols)) return "scales change within 8 columns";
  if (op.w.cols % 8 != 0 || op.rows % 8 != 0 || w.strides[0] % 8 != 0 || !aligned16(w.data)) {
    return "rows of the weight are not aligned";
  }
  if (op.x.strides[0] % 4 != 0 || op.x_stride % 4 != 0 || !aligned16(op.x.data))
    return "rows of x are not aligned";
  return nullptr;
}

void head_project_mma(Stream& stream, const HeadProject& op) {
  const Tensor& w = op.w.parts[0].data;
  const int cols = static_cast<int>(op.w.cols);
  const HeadArguments a{.out = op.out.as<float>(),
                        .x = op.x.as<float>(),
                        .w = stored_matrix(op.w.parts[0]),
                        .out_stride = op.out.strides[0],
                        .x_stride = op.x.strides[0],
                        .out_head_stride = op.out_stride,
                        .x_head_stride = op.x_stride,
                        .tokens = static_cast<int>(op.x.dim(0)),
                        .head_rows = op.head_rows,
                        .first = op.first,
                        .outs = op.transposed ? op.rows : cols,
                        .inner = op.transposed ? cols : op.rows};
  if (a.tokens == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(a.outs, kTile)),
                  static_cast<unsigned>(ceil_div(a.tokens, kTile)), static_cast<unsigned>(op.heads));
  auto start = [&](auto down, auto transposed) {
    launch(stream.queue(), op.transposed ? transposed : down, grid, dim3(kThreads), 0, a);
  };
  if (w.dtype == DType::f8e4m3) return start(head_kernel<Fp8, Bf16, false>, head_kernel<Fp8, Bf16, true>);
  if (w.dtype == DType::bf16) return start(head_kernel<Bf16, Bf16, false>, head_kernel<Bf16, Bf16, true>);
  start(head_kernel<F16, F16, false>, head_kernel<F16, F16, true>);
}

}  // namespace atom::ops::gpu_kernels
