// The causal convolution before the delta rule.
//   out[t, c] = silu(sum_j weight[c, j] * x[t - (kernel - 1) + j, c]), rows before the step from the state
// Bound: x and out once, the state read and written. Grids: (256 channels, row), then (256 channels,
// sequence) to bring the states up to date; steps of decodes do both in one.
#include "ops/gpu/delta_kernels.h"
#include "ops/gpu/elements.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxKernel = 16;

struct ConvArguments {
  float* out;
  const float *x, *weight;
  float* state;
  int64_t out_stride, x_stride, state_stride;
  const RecurrentSequence* sequences;
  int count, rows, channels, kernel;

  // Row `row` of a sequence, one of the state's if it is negative.
  __device__ float input(const RecurrentSequence& s, int row, int c) const {
    if (row >= 0) return x[(s.first_row + row) * x_stride + c];
    return state[s.slot * state_stride + int64_t{kernel - 1 + row} * channels + c];
  }
  __device__ const RecurrentSequence& sequence_of(int row) const {
    int begin = 0, end = count;
    while (end - begin > 1) {
      const int middle = (begin + end) / 2;
      (sequences[middle].first_row <= row ? begin : end) = middle;
    }
    return sequences[begin];
  }
  __device__ void compute(const RecurrentSequence& s, int row, int c) const {
    float sum = 0;
    for (int j = 0; j < kernel && s.slot >= 0; ++j) {
      sum += weight[c * kernel + j] * input(s, row - (kernel - 1) + j, c);
    }
    out[(s.first_row + row) * out_stride + c] = sum / (1 + expf(-sum));
  }
  // The state becomes the last kernel - 1 rows that are kept.
  __device__ void keep(const RecurrentSequence& s, int c) const {
    const int kept = s.rows - s.dropped;
    if (s.slot < 0 || kept == 0) return;
    float last[kMaxKernel];
#pragma unroll
    for (int i = 0; i < kMaxKernel; ++i) {
      if (i < kernel - 1) last[i] = input(s, kept - (kernel - 1) + i, c);
    }
#pragma unroll
    for (int i = 0; i < kMaxKernel; ++i) {
      if (i < kernel - 1) state[s.slot * state_stride + int64_t{i} * channels + c] = last[i];
    }
  }
};

__global__ void __launch_bounds__(kThreads) rows_kernel(ConvArguments a) {
  let_next_start();
  wait_for_previous();
  const int c = blockIdx.x * kThreads + threadIdx.x;
  if (c >= a.channels) return;
  for (int row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const RecurrentSequence& s = a.sequence_of(row);
    a.compute(s, row - s.first_row, c);
  }
}

__global__ void __launch_bounds__(kThreads) states_kernel(ConvArguments a, bool decodes) {
  let_next_start();
  wait_for_previous();
  const int c = blockIdx.x * kThreads + threadIdx.x;
  if (c >= a.channels) return;
  for (int i = blockIdx.y; i < a.count; i += gridDim.y) {
    if (decodes) a.compute(a.sequences[i], 0, c);
    a.keep(a.sequences[i], c);
  }
}

}  // namespace

void causal_conv(Stream& stream, const CausalConv& op) {
  const int64_t rows = op.out.dim(0);
  if (rows == 0) return;
  const ConvArguments a{.out = op.out.as<float>(),
                        .x = op.x.as<float>(),
                        .weight = op.weight.as<float>(),
                        .state = op.state.as<float>(),
                        .out_stride = op.out.strides[0],
                        .x_stride = op.x.strides[0],
                        .state_stride = op.state.strides[0],
                        .sequences = op.sequences.data(),
                        .count = static_cast<int>(op.sequences.size()),
                        .rows = static_cast<int>(rows),
                        .channels = static_cast<int>(op.out.dim(1)),
                        .kernel = op.kernel};
  constexpr int64_t kMaxGridY = 65535;
  const auto stripes = static_cast<unsigned>(ceil_div(a.channels, kThreads));
  const bool decodes = a.count == a.rows;
  if (!decodes) {
    launch(stream.queue(), rows_kernel, dim3(stripes, static_cast<unsigned>(std::min(rows, kMaxGridY))),
           dim3(kThreads), 0, a);
  }
  launch(stream.queue(), states_kernel,
         dim3(stripes, static_cast<unsigned>(std::min<int64_t>(a.count, kMaxGridY))), dim3(kThreads), 0, a,
         decodes);
}

}  // namespace atom::ops::gpu_kernels
