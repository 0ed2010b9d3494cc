// Products of few rows with a matrix: every weight is read once from memory and used for all rows, in
// float32.
//   out[t, r] = x[t] · w[r] + bias[r];   gated: silu(x · g[r] + bg[r]) * (x · u[r] + bu[r])
// Bound: the bytes of the matrix. Grid: a warp owns kRows rows of the matrix (gated: rows r of both halves)
// and keeps kLoads loads of 16 bytes under way; the first of them start before the previous kernel has ended,
// since nothing writes weights.
#include <bit>

#include "ops/gpu/kernels.h"
#include "ops/gpu/stored.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kLoads = 2;      // more under way per thread leave room for fewer threads: slower
constexpr int kMaxTokens = 8;  // of a block
// Small matrices, routers above all, are cheap to read for every 8 rows of x: tiles would leave most of the
// device idle.
constexpr int64_t kMaxGroupedTokens = 512, kMaxGroupedRows = 1024;

struct MatvecArguments {
  float* out;
  const float* x;
  const void* w;      // the gate half, if gated
  const void* up;     // gated only
  const float* bias;  // null or of the rows of w
  const float* up_bias;
  int64_t out_stride, x_stride, w_stride;
  int rows, cols, tokens;
  StoredMatrix scales, up_scales;  // of E4M3: where the scales are
  int block_shift;                 // columns that share one, as a power of two
};

__device__ inline float silu(float x) { return x / (1 + __expf(-x)); }

template <class T, int kTokens, int kRows, bool kGated>
__global__ void __launch_bounds__(kWarps* kWarp) matvec_kernel(MatvecArguments a) {
  a.tokens = min(kTokens, a.tokens - static_cast<int>(blockIdx.y) * kTokens);
  a.out += int64_t{blockIdx.y} * kTokens * a.out_stride;
  a.x += int64_t{blockIdx.y} * kTokens * a.x_stride;
  constexpr int kVec = Vec<T>::kElements;
  constexpr int kMatrixRows = kGated ? 2 * kRows : kRows;                  // that a warp reads
  constexpr int kSteps = kLoads > kMatrixRows ? kLoads / kMatrixRows : 1;  // along the columns
  const int lane = threadIdx.x % kWarp;
  const int first = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kRows;
  const int vectors = a.cols / kVec;
  const T* rows[kMatrixRows];
#pragma unroll
  for (int r = 0; r < kMatrixRows; ++r) {
    const int row =
        min(first + r % kRows, a.rows - 1);  // beyond the end: read the last row again, store nothing
    rows[r] = static_cast<const T*>(r < kRows ? a.w : a.up) + row * a.w_stride;
  }
  uint4 raw[kSteps][kMatrixRows];
  auto load = [&](int vector) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int v = min(vector + s * kWarp, vectors - 1);
#pragma unroll
      for (int r = 0; r < kMatrixRows; ++r)
        raw[s][r] = load_once(reinterpret_cast<const uint4*>(rows[r]) + v);
    }
  };
  load(lane);
  // Scales of the rows.
  constexpr bool kScaled = std::is_same_v<T, Fp8>;
  const float* scales[kMatrixRows];
#pragma unroll
  for (int r = 0; r < kMatrixRows && kScaled; ++r) {
    const StoredMatrix& m = r < kRows ? a.scales : a.up_scales;
    const int row = min(first + r % kRows, a.rows - 1) + m.first_row;
    scales[r] = reinterpret_cast<const float*>(m.scales + row / m.block_rows * m.scale_stride);
  }
  let_next_start();
  wait_for_previous();

  float sums[kTokens][kMatrixRows] = {};
  for (int vector = lane; vector < vectors; vector += kSteps * kWarp) {
    if (vector != lane) load(vector);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int v = vector + s * kWarp;
      if (v >= vectors) break;
      float w[kMatrixRows][kVec];
#pragma unroll
      for (int r = 0; r < kMatrixRows; ++r) widen16(raw[s][r], w[r], T{});
      float scale[kMatrixRows];
#pragma unroll
      for (int r = 0; r < kMatrixRows && kScaled; ++r) {
        scale[r] = scales[r][(v * kVec + a.scales.first_col) >> a.block_shift];
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (kTokens > 1 && t >= a.tokens) break;
        const float4* x = reinterpret_cast<const float4*>(a.x + t * a.x_stride) + v * (kVec / 4);
        float part[kMatrixRows] = {};
#pragma unroll
        for (int i = 0; i < kVec / 4; ++i) {
          const float4 q = x[i];
#pragma unroll
          for (int r = 0; r < kMatrixRows; ++r) {
            float& sum = kScaled ? part[r] : sums[t][r];
            sum += q.x * w[r][4 * i];
            sum += q.y * w[r][4 * i + 1];
            sum += q.z * w[r][4 * i + 2];
            sum += q.w * w[r][4 * i + 3];
          }
        }
#pragma unroll
        for (int r = 0; r < kMatrixRows && kScaled; ++r) sums[t][r] += scale[r] * part[r];
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int r = 0; r < kMatrixRows; ++r) sums[t][r] = warp_sum(sums[t][r]);
  }
  if (lane != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = first + r;
    if (row >= a.rows) return;
    const float bias = a.bias == nullptr ? 0 : a.bias[row];
    const float up_bias = kGated && a.up_bias != nullptr ? a.up_bias[row] : 0;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= a.tokens) break;
      float value = sums[t][r] + bias;
      if constexpr (kGated) value = silu(value) * (sums[t][kRows + r] + up_bias);
      a.out[t * a.out_stride + row] = value;
    }
  }
}

template <bool kGated>
void launch_matvec(Stream& stream, DType dtype, MatvecArguments a) {
  const int block_cols = a.scales.block_cols, first_col = a.scales.first_col;
  a.block_shift = first_col + a.cols <= block_cols ? 31 : std::countr_zero(static_cast<unsigned>(block_cols));
  auto run = [&](auto element) {
    using T = decltype(element);
    // More rows of the matrix per warp as rows of x are added: each read of x then serves several of them.
    auto start = [&](auto kernel, int rows_per_warp) {
      const int64_t blocks = ceil_div(a.rows, int64_t{kWarps} * rows_per_warp);
      const int64_t groups = ceil_div(a.tokens, kMaxTokens);
      launch(stream.queue(), kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(groups)),
             dim3(kWarps * kWarp), 0, a);
    };
    if (a.tokens == 1) {
      // A vector of small elements meets many of x: two rows share them.
      constexpr int kRows = sizeof(T) == 1 && !kGated ? 2 : 1;
      return start(matvec_kernel<T, 1, kRows, kGated>, kRows);
    }
    if constexpr (!kGated) {
      if (a.tokens > kMaxTokens) return start(matvec_kernel<T, kMaxTokens, 1, kGated>, 1);  // for more blocks
    }
    if (a.tokens == 2) return start(matvec_kernel < T, 2, kGated ? 1 : 2, kGated >, kGated ? 1 : 2);
    if (a.tokens <= 4) return start(matvec_kernel < T, 4, kGated ? 2 : 4, kGated >, kGated ? 2 : 4);
    return start(matvec_kernel < T, kMaxTokens, kGated ? 2 : 4, kGated >, kGated ? 2 : 4);
  };
  if (dtype == DType::f8e4m3) return run(Fp8{});
  with_element(dtype, run);
}

const char* refuse_parts(const Weight& w, const Tensor& x, int64_t max_tokens) {
  if (x.dim(0) > max_tokens) return "too many rows";
  if (x.strides[0] % 4 != 0 || !aligned16(x.data)) return "rows of x are not aligned";
  for (const WeightPart& part : w.parts) {
    const DType dtype = part.data.dtype;
    if (!is_plain(dtype) && dtype != DType::f8e4m3) return "for plain types and E4M3 only";
    const int64_t vec = 16 / dtype_bytes(dtype, 1);
    if (w.cols % vec != 0 || part.data.strides[0] % vec != 0 || !aligned16(part.data.data)) {
      return "rows of the weight are not aligned";
    }
    const BlockScales& scale = part.scale;
    if (scale && scale.first_col + w.cols > scale.block_cols &&
        !(scale.steady_over(vec, w.cols) && std::has_single_bit(static_cast<uint64_t>(scale.block_cols)))) {
      return "scales change within a vector of columns";
    }
  }
  return nullptr;
}

// Where the gate and up halves begin, if they are alike; null otherwise.
struct Halves {
  const void *gate = nullptr, *up = nullptr;
  DType dtype = DType::f32;
  int64_t stride = 0;
  StoredMatrix gate_scales = {}, up_scales = {};
};
Halves halves_of(const Weight& w) {
  const Tensor& first = w.parts[0].data;
  WeightPart gate = w.parts[0], up = gate;
  if (w.parts.size() == 1) {
    gate = w.parts[0].rows(0, w.rows / 2);
    up = w.parts[0].rows(w.rows / 2, w.rows / 2);
  } else {
    up = w.parts[1];
    if (w.parts.size() != 2 || first.dim(0) != up.data.dim(0) || first.dtype != up.data.dtype ||
        first.strides[0] != up.data.strides[0] || gate.scale.block_cols != up.scale.block_cols ||
        gate.scale.first_col != up.scale.first_col) {
      return {};
    }
  }
  return {gate.data.data,   up.data.data,        first.dtype,
          first.strides[0], stored_matrix(gate), stored_matrix(up)};
}

}  // namespace

const char* refuse_matvec(const Stream& stream, const Linear& op) {
  if (op.x.dim(0) > 1 && refuse_library_gemm(stream, op) == nullptr)
    return "tensor cores are faster for several rows";
  if (op.x.dim(0) > 1 && refuse_packed_linear(stream, op) == nullptr) {
    return "tensor cores are faster for several rows";
  }
  return refuse_parts(op.w, op.x, op.w.rows <= kMaxGroupedRows ? kMaxGroupedTokens : kMaxTokens);
}

void matvec(Stream& stream, const Linear& op) {
  if (op.x.dim(0) == 0) return;
  int64_t row = 0;
  for (const WeightPart& part : op.w.parts) {
    launch_matvec<false>(stream, part.data.dtype,
                         {.out = op.out.as<float>() + row,
                          .x = op.x.as<float>(),
                          .w = part.data.data,
                          .bias = op.bias ? op.bias.as<float>() + row : nullptr,
                          .out_stride = op.out.strides[0],
                          .x_stride = op.x.strides[0],
                          .w_stride = part.data.strides[0],
                          .rows = static_cast<int>(part.data.dim(0)),
                          .cols = static_cast<int>(op.w.cols),
                          .tokens = static_cast<int>(op.x.dim(0)),
                          .scales = stored_matrix(part)});
    row += part.data.dim(0);
  }
}

const char* refuse_gated_matvec(const Stream& stream, const GatedUp& op) {
  if (op.x.dim(0) > 1 && refuse_library_gated(stream, op) == nullptr)
    return "tensor cores are faster for several rows";
  if (op.x.dim(0) > 1 && refuse_packed_gated(stream, op) == nullptr) {
    return "tensor cores are faster for several rows";
  }
  if (const char* reason = refuse_parts(op.w, op.x, kMaxTokens)) return reason;
  return halves_of(op.w).gate == nullptr ? "gate and up are stored differently" : nullptr;
}

void gated_matvec(Stream& stream, const GatedUp& op) {
  if (op.x.dim(0) == 0) return;
  const Halves halves = halves_of(op.w);
  const int64_t half = op.w.rows / 2;
  launch_matvec<true>(stream, halves.dtype,
                      {.out = op.out.as<float>(),
                       .x = op.x.as<float>(),
                       .w = halves.gate,
                       .up = halves.up,
                       .bias = op.bias.as<float>(),
                       .up_bias = op.bias ? op.bias.as<float>() + half : nullptr,
                       .out_stride = op.out.strides[0],
                       .x_stride = op.x.strides[0],
                       .w_stride = halves.stride,
                       .rows = static_cast<int>(half),
                       .cols = static_cast<int>(op.w.cols),
                       .tokens = static_cast<int>(op.x.dim(0)),
                       .scales = halves.gate_scales,
                       .up_scales = halves.up_scales});
}

}  // namespace atom::ops::gpu_kernels
