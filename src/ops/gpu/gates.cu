// The gates after attention and after the delta rule.
//   gated norm: x = x / sqrt(mean(x²) + eps) * weight * silu(gate), head by head; sigmoid: x *= sigmoid(gate)
// Bound: x read and written, gate read. Grids: a warp per head and row; a thread per element.
#include "ops/gpu/delta_kernels.h"
#include "ops/gpu/elements.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 256;
constexpr int64_t kMaxGridY = 65535;

__global__ void __launch_bounds__(kWarps* kWarp)
    gated_norm_kernel(float* x, int64_t x_stride, const float* gate, int64_t gate_stride, const float* weight,
                      int heads, int dim, int64_t rows, float eps) {
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % kWarp, head = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (head >= heads) return;
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    float* values = x + t * x_stride + int64_t{head} * dim;
    const float* gates = gate + t * gate_stride + int64_t{head} * dim;
    float squares = 0;
    for (int d = lane; d < dim; d += kWarp) squares += values[d] * values[d];
    const float scale = 1 / sqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
    for (int d = lane; d < dim; d += kWarp) {
      values[d] = values[d] * scale * weight[d] * gates[d] / (1 + expf(-gates[d]));
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    sigmoid_kernel(float* x, int64_t x_stride, const float* gate, int64_t gate_stride, int n, int64_t rows) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y)
    x[t * x_stride + i] /= 1 + expf(-gate[t * gate_stride + i]);
}

unsigned grid_rows(const Tensor& x) { return static_cast<unsigned>(std::min(x.dim(0), kMaxGridY)); }

}  // namespace

void gated_rms_norm(Stream& stream, const GatedRmsNorm& op) {
  if (op.x.dim(0) == 0) return;
  const int dim = static_cast<int>(op.weight.dim(0)), heads = static_cast<int>(op.x.dim(1)) / dim;
  launch(stream.queue(), gated_norm_kernel,
         dim3(static_cast<unsigned>(ceil_div(heads, kWarps)), grid_rows(op.x)), dim3(kWarps * kWarp), 0,
         op.x.as<float>(), op.x.strides[0], op.gate.as<float>(), op.gate.strides[0], op.weight.as<float>(),
         heads, dim, op.x.dim(0), op.eps);
}

void sigmoid_gate(Stream& stream, const SigmoidGate& op) {
  if (op.x.dim(0) == 0) return;
  const int n = static_cast<int>(op.x.dim(1));
  launch(stream.queue(), sigmoid_kernel, dim3(static_cast<unsigned>(ceil_div(n, kThreads)), grid_rows(op.x)),
         dim3(kThreads), 0, op.x.as<float>(), op.x.strides[0], op.gate.as<float>(), op.gate.strides[0], n,
         op.x.dim(0));
}

}  // namespace atom::ops::gpu_kernels
