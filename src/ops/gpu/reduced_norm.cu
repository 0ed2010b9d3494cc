// All-reduce, residual add and RMS norm of a few rows in one kernel.
//   residual += sum of the ranks' add; out = residual / sqrt(mean(residual²) + eps) * (offset + weight)
// Bound: one trip of a flag between devices. Grid: a block per row, at most Exchange::blocks, each of which
// takes every so many-th row; a row stays in registers.
#include "comm/device_communicator.h"
#include "comm/gpu/exchange.h"
#include "ops/gpu/block_sum.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kMostRows =
    4 * kMostExchangeBlocks;  // more move fewer bytes when they are reduced in parts

struct ReducedNorm {
  float4 *out, *x;
  const float4 *add, *weight;
  int64_t out_stride, x_stride, add_stride;  // vectors
  int vectors;
  float eps, weight_offset;
};

// A thread has up to kKept vectors of a row.
template <int kKept>
__global__ void __launch_bounds__(kThreads)
    reduced_norm_kernel(const GPU_IN_PLACE Exchange e, const GPU_IN_PLACE ReducedNorm a, int rows) {
  if (!e.shares_device) let_next_start();
  float4 weights[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = threadIdx.x + k * kThreads;
    if (i < a.vectors) weights[k] = a.weight[i];
  }
  wait_for_previous();
  Exchanger exchanger(e);
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    float4 sums[kKept];
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int i = threadIdx.x + k * kThreads;
      if (i >= a.vectors) continue;
      sums[k] = a.add[row * a.add_stride + i];
      for (int p = 1; p <= exchanger.others(); ++p) exchanger.outbox<float4>(exchanger.peer(p))[i] = sums[k];
    }
    exchanger.swap();
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int i = threadIdx.x + k * kThreads;
      if (i >= a.vectors) continue;
      float4* x = a.x + row * a.x_stride + i;
      float4 v = *x;
      add_to(v, exchanger.sum_with(sums[k], i));
      *x = v;
      sums[k] = v;
      squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    const float mean = block_sum<kThreads>(squares) / static_cast<float>(4 * a.vectors);
    const float scale = 1 / sqrtf(mean + a.eps);
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int i = threadIdx.x + k * kThreads;
      if (i >= a.vectors) continue;
      const float4 v = sums[k], w = weights[k];
      a.out[row * a.out_stride + i] = {
          v.x * scale * (a.weight_offset + w.x), v.y * scale * (a.weight_offset + w.y),
          v.z * scale * (a.weight_offset + w.z), v.w * scale * (a.weight_offset + w.w)};
    }
  }
  let_next_start();
  exchanger.finish();
}

bool in_fours(const Tensor& t) { return aligned16(t.data) && (t.rank == 1 || t.strides[0] % 4 == 0); }

}  // namespace

const char* refuse_reduced_norm(const Stream&, const AddRmsNorm& op) {
  if (op.reduce == nullptr || op.reduce->size() == 1) return "there is nobody to reduce with";
  if (!op.out) return "only the sum is wanted";
  if (op.residual.dim(0) > kMostRows) return "more rows than a step of decodes has";
  const int64_t n = op.residual.dim(1);
  if (n % 4 != 0 || n * static_cast<int64_t>(sizeof(float)) > kExchangeBytes) return "the width of a row";
  if (!in_fours(op.out) || !in_fours(op.residual) || !in_fours(op.add) || !in_fours(op.weight))
    return "rows that do not begin at 16 bytes";
  return nullptr;
}

void reduced_norm(Stream& stream, const AddRmsNorm& op) {
  const auto rows = static_cast<int>(op.residual.dim(0));
  if (rows == 0) return;
  const auto* communicator = dynamic_cast<const DeviceCommunicator*>(op.reduce);
  CHECK(communicator != nullptr, "a GPU's rows reduced by ranks without GPUs");
  const Exchange& exchange = communicator->exchange();
  const ReducedNorm a{op.out.as<float4>(),
                      op.residual.as<float4>(),
                      op.add.as<const float4>(),
                      op.weight.as<const float4>(),
                      op.out.strides[0] / 4,
                      op.residual.strides[0] / 4,
                      op.add.strides[0] / 4,
                      static_cast<int>(op.residual.dim(1) / 4),
                      op.eps,
                      op.weight_offset};
  const dim3 grid(static_cast<unsigned>(std::min(rows, exchange.blocks)));
  const bool narrow = a.vectors <= 4 * kThreads;
  launch(stream.queue(), narrow ? reduced_norm_kernel<4> : reduced_norm_kernel<8>, grid, dim3(kThreads), 0,
         exchange, a, rows);
}

}  // namespace atom::ops::gpu_kernels
