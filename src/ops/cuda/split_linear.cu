// Products of float32 rows with a small matrix of bf16, routers above all, exact to float32's digits on
// tensor cores: a float32 is the sum of three bf16, and their products with bf16 are exact.
//   out[t, r] = x[t] · w[r] + bias[r]
// Bound: latency, and the second cache. Grid: (16 rows of w, 8 rows of x); the warps of a block share the
// columns. The first weights are on their way before the previous kernel has ended.
#include "ops/cuda/mma.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 16, kRows = 16, kTokens = 8;
constexpr int kStepCols = 32;  // of a warp
constexpr int kSteps = 6;      // under way together
constexpr int64_t kMinTokens = 9, kMaxTokens = 512, kMaxRows = 1024;

struct SplitArguments {
  float* out;
  const float* x;
  const uint16_t* w;
  const float* bias;  // null or of the rows of w
  int64_t out_stride, x_stride, w_stride;
  int rows, cols, tokens;
};

// The next eight bits of two numbers' digits as a pair of bf16, which are taken off the numbers.
__device__ inline uint32_t take_digits(float& a, float& b) {
  const uint32_t bits_a = __float_as_uint(a), bits_b = __float_as_uint(b);
  a -= __uint_as_float(bits_a & 0xFFFF0000u);
  b -= __uint_as_float(bits_b & 0xFFFF0000u);
  return __byte_perm(bits_a, bits_b, 0x7632);
}

__global__ void __launch_bounds__(kWarps * 32) split_kernel(SplitArguments a) {
  __shared__ float4 parts[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4;
  const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;
  // Beyond the end: the last row again, which is not stored.
  const uint16_t* w[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) w[h] = a.w + min(first_row + h * 8 + lane / 4, a.rows - 1) * a.w_stride;
  const float* x = a.x + min(first_token + lane / 4, a.tokens - 1) * a.x_stride;
  auto col_of = [&](int first, int s) { return first + (s * kWarps + warp) * kStepCols + quad * 8; };
  uint4 raw[kSteps][2];
  auto load = [&](int first) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int col = col_of(first, s);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        raw[s][h] = col < a.cols ? *reinterpret_cast<const uint4*>(w[h] + col) : uint4{};
    }
  };
  load(0);
  let_next_start();
  wait_for_previous();

  float large[4] = {}, small[4] = {};
  constexpr int kPass = kSteps * kWarps * kStepCols;
  for (int first = 0; first < a.cols; first += kPass) {
    if (first > 0) load(first);
    float v[kSteps][8];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int col = col_of(first, s);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 four =
            col < a.cols ? *reinterpret_cast<const float4*>(x + col + 4 * i) : make_float4(0, 0, 0, 0);
        v[s][4 * i] = four.x, v[s][4 * i + 1] = four.y, v[s][4 * i + 2] = four.z, v[s][4 * i + 3] = four.w;
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint32_t of_w[2][4] = {{raw[s][0].x, raw[s][1].x, raw[s][0].y, raw[s][1].y},
                                   {raw[s][0].z, raw[s][1].z, raw[s][0].w, raw[s][1].w}};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* four = &v[s][4 * i];
        uint32_t digits[3][2];
#pragma unroll
        for (int d = 0; d < 3; ++d) {
          digits[d][0] = take_digits(four[0], four[1]);
          digits[d][1] = take_digits(four[2], four[3]);
        }
        multiply(small, of_w[i], digits[2][0], digits[2][1], Bf16{});
        multiply(large, of_w[i], digits[0][0], digits[0][1], Bf16{});
        multiply(small, of_w[i], digits[1][0], digits[1][1], Bf16{});
      }
    }
  }
  parts[warp][lane] = {large[0] + small[0], large[1] + small[1], large[2] + small[2], large[3] + small[3]};
  __syncthreads();
  if (threadIdx.x >= kRows * kTokens) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += reinterpret_cast<const float*>(parts[i])[threadIdx.x];
  const int of_lane = threadIdx.x / 4, place = threadIdx.x % 4;
  const int row = first_row + of_lane / 4 + place / 2 * 8, token = first_token + of_lane % 4 * 2 + place % 2;
  if (row < a.rows && token < a.tokens)
    a.out[token * a.out_stride + row] = sum + (a.bias == nullptr ? 0 : a.bias[row]);
}

}  // namespace

const char* refuse_split_linear(const Stream& stream, const Linear& op) {
  if (stream.queue().capability() < 80) return "needs compute capability 8.0";
  if (op.precision != Precision::exact) return "others are faster if activations may be rounded";
  if (op.x.dim(0) < kMinTokens) return "too few rows";
  if (op.x.dim(0) > kMaxTokens || op.w.rows > kMaxRows) return "too many rows";
  if (op.x.strides[0] % 4 != 0 || !aligned16(op.x.data)) return "rows of x are not aligned";
  for (const WeightPart& part : op.w.parts) {
    if (part.data.dtype != DType::bf16) return "for bf16";
    if (op.w.cols % 8 != 0 || part.data.strides[0] % 8 != 0 || !aligned16(part.data.data))
      return "rows of the weight are not aligned";
  }
  return nullptr;
}

void split_linear(Stream& stream, const Linear& op) {
  int64_t row = 0;
  for (const WeightPart& part : op.w.parts) {
    const SplitArguments a{.out = op.out.as<float>() + row,
                           .x = op.x.as<float>(),
                           .w = static_cast<const uint16_t*>(part.data.data),
                           .bias = op.bias ? op.bias.as<float>() + row : nullptr,
                           .out_stride = op.out.strides[0],
                           .x_stride = op.x.strides[0],
                           .w_stride = part.data.strides[0],
                           .rows = static_cast<int>(part.data.dim(0)),
                           .cols = static_cast<int>(op.w.cols),
                           .tokens = static_cast<int>(op.x.dim(0))};
    const dim3 grid(static_cast<unsigned>(ceil_div(a.rows, kRows)),
                    static_cast<unsigned>(ceil_div(a.tokens, kTokens)));
    launch(stream.queue(), split_kernel, grid, dim3(kWarps * 32), 0, a);
    row += part.data.dim(0);
  }
}

}  // namespace atom::ops::gpu_kernels
