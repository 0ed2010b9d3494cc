// RMS norm of vectors that lie spread over ranks: squares here, their sum over the ranks, then the scaling.
//   x = x / sqrt(sum(x²) / total + eps) * weight
// Bound: 3 n floats per row, and an all-reduce of one float per row. Grid: one block per row.
#include "comm/communicator.h"
#include "ops/gpu/block_sum.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    squares_kernel(float* sums, const float* x, int64_t x_stride, int n, float copies) {
  let_next_start();
  wait_for_previous();
  x += blockIdx.x * x_stride;
  float squares = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) squares += x[i] * x[i];
  const float sum = block_sum<kThreads>(squares);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum / copies;
}

__global__ void __launch_bounds__(kThreads) scale_kernel(float* x, int64_t x_stride, const float* sums,
                                                         const float* weight, int n, float total, float eps) {
  let_next_start();
  wait_for_previous();
  x += blockIdx.x * x_stride;
  const float scale = 1 / sqrtf(sums[blockIdx.x] / total + eps);
  for (int i = threadIdx.x; i < n; i += kThreads) x[i] = x[i] * scale * weight[i];
}

}  // namespace

void spread_rms_norm(Stream& stream, const SpreadRmsNorm& op) {
  if (op.reduce == nullptr || op.reduce->size() == 1) {
    return rms_norm(stream, {.out = op.x, .x = op.x, .weight = op.weight, .eps = op.eps});
  }
  const int64_t rows = op.x.dim(0);
  if (rows == 0) return;
  const int n = static_cast<int>(op.x.dim(1));
  auto* sums = static_cast<float*>(stream.queue().scratch(rows * static_cast<int64_t>(sizeof(float))));
  const dim3 grid(static_cast<unsigned>(rows));
  launch(stream.queue(), squares_kernel, grid, dim3(kThreads), 0, sums, op.x.as<float>(), op.x.strides[0], n,
         static_cast<float>(op.copies));
  op.reduce->all_reduce(stream, make_tensor(sums, DType::f32, {rows, 1}, stream.device()));
  launch(stream.queue(), scale_kernel, grid, dim3(kThreads), 0, op.x.as<float>(), op.x.strides[0], sums,
         op.weight.as<float>(), n, static_cast<float>(op.total), op.eps);
}

}  // namespace atom::ops::gpu_kernels
