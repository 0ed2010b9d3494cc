// Products head by head with the expansion of latent attention.
//   down:       out[t, h, c] = sum over r of x[t, h, r] w[h, r, c]
//   transposed: out[t, h, r] = sum over c of x[t, h, c] w[h, r, c]
// Bound: the bytes of the weight for few rows, else flops. Grids: down (head, 64 or 128 columns): 32 groups
// of threads take every 32nd row of the head and 16 bytes of it each; transposed (head, 16 to 64 rows): up to
// 8 rows per warp; tiled (64 outputs, 64 rows of x, head). Those for few rows read what they can hold of the
// weight before the kernels before have ended. What follows a product `down` is started when those have
// ended: it may read the cache at once.
#include "ops/gpu/elements.h"
#include "ops/gpu/latent_kernels.h"
#include "ops/gpu/stored.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxTokens = 8;  // of the kernels for few rows
constexpr int kGroups = 32;    // of down

struct HeadArguments {
  float* out;
  const float* x;
  StoredMatrix w;
  int64_t out_stride, x_stride;            // of rows
  int64_t out_head_stride, x_head_stride;  // of heads
  int tokens, head_rows, first, rows, cols;

  __device__ int row(int h, int r) const { return h * head_rows + first + r; }
};

// The scale of 16 bytes of a row from column `col` on, which all have the same.
template <class T>
__device__ inline float scale_of(const StoredMatrix& m, int row, int col) {
  if constexpr (std::is_same_v<T, Fp8>) {
    const unsigned block = static_cast<unsigned>(row + m.first_row) / static_cast<unsigned>(m.block_rows);
    const auto* scales = reinterpret_cast<const float*>(m.scales + block * m.scale_stride);
    return scales[static_cast<unsigned>(col + m.first_col) / static_cast<unsigned>(m.block_cols)];
  } else {
    return 1;
  }
}
template <class T>
__device__ inline uint4 load_run(const StoredMatrix& m, int row, int col) {
  return load_once(reinterpret_cast<const uint4*>(m.data + row * m.stride + col * sizeof(T)));
}

// Calls fn(element) for the types that heads are stored in.
template <class Fn>
void with_head_element(DType dtype, const Fn& fn) {
  if (dtype == DType::f8e4m3) return fn(Fp8{});
  with_element(dtype, fn);
}

template <class T, int kTokens>
__global__ void __launch_bounds__(kThreads, kTokens == 1 ? 2 : 1) down_kernel(HeadArguments a) {
  constexpr int kVec = Vec<T>::kElements;
  constexpr int kLanes = kThreads / kGroups, kColumns = kLanes * kVec;
  constexpr int kLoads = kTokens <= 2 ? 8 : 4;  // under way per thread
  __shared__ float sums[kGroups][kColumns];
  const int h = blockIdx.x, group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int c = blockIdx.y * kColumns + lane * kVec;
  const int rows = c < a.cols ? a.rows : 0;  // of this thread
  uint4 raw[kLoads] = {};
  float scales[kLoads] = {};
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = first + i * kGroups;
      if (r >= rows) continue;
      raw[i] = load_run<T>(a.w, a.row(h, r), c);
      scales[i] = scale_of<T>(a.w, a.row(h, r), c);
    }
  };
  load(group);
  wait_for_previous();
  let_next_start();
  float acc[kTokens][kVec] = {};
  for (int first = group;;) {
    float x[kTokens][kLoads] = {};
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float* from = a.x + t * a.x_stride + h * a.x_head_stride;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int r = first + i * kGroups;
        if (t < a.tokens && r < rows) x[t][i] = from[r];
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      float w[kVec];
      widen16(raw[i], w, T{});
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float factor = x[t][i] * scales[i];
#pragma unroll
        for (int k = 0; k < kVec; ++k) acc[t][k] += factor * w[k];
      }
    }
    first += kLoads * kGroups;
    if (first >= rows) break;
    load(first);
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= a.tokens) break;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kVec; ++i) sums[group][lane * kVec + i] = acc[t][i];
    __syncthreads();
    for (int i = threadIdx.x; i < kColumns; i += kThreads) {
      const int column = blockIdx.y * kColumns + i;
      if (column >= a.cols) break;
      float sum = 0;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) sum += sums[g][i];
      a.out[t * a.out_stride + h * a.out_head_stride + column] = sum;
    }
  }
}

// Of a warp of transposed_kernel: lanes share 512 columns at a time.
template <class T>
constexpr int kVecs = 16 / Vec<T>::kElements;
template <class T, int kTokens>
constexpr int kRowsPerWarp = (kTokens == 1 ? 8 : 4) / kVecs<T>;

template <class T, int kTokens>
__global__ void __launch_bounds__(kThreads, kTokens == 1 ? 2 : 1) transposed_kernel(HeadArguments a) {
  constexpr int kVec = Vec<T>::kElements, kRows = kRowsPerWarp<T, kTokens>;
  const int h = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_row = (blockIdx.y * (kThreads / kWarp) + warp) * kRows, vectors = a.cols / kVec;
  uint4 raw[kRows][kVecs<T>] = {};
  float scales[kRows][kVecs<T>] = {};
  auto load = [&](int first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = a.row(h, min(first_row + r, a.rows - 1));
#pragma unroll
      for (int j = 0; j < kVecs<T>; ++j) {
        const int v = first + j * kWarp;
        if (v >= vectors) continue;
        raw[r][j] = load_run<T>(a.w, row, v * kVec);
        scales[r][j] = scale_of<T>(a.w, row, v * kVec);
      }
    }
  };
  load(lane);
  let_next_start();
  wait_for_previous();
  if (first_row >= a.rows) return;
  float acc[kTokens][kRows] = {};
  for (int first = lane;;) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (kTokens > 1 && t >= a.tokens) break;
      const auto* from = reinterpret_cast<const float4*>(a.x + t * a.x_stride + h * a.x_head_stride);
      float4 x[kVecs<T>][kVec / 4] = {};
#pragma unroll
      for (int j = 0; j < kVecs<T>; ++j) {
        const int v = first + j * kWarp;
#pragma unroll
        for (int i = 0; i < kVec / 4; ++i) {
          if (v < vectors) x[j][i] = from[v * (kVec / 4) + i];
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < kVecs<T>; ++j) {
          float w[kVec], sum = 0;
          widen16(raw[r][j], w, T{});
#pragma unroll
          for (int i = 0; i < kVec / 4; ++i) {
            sum += x[j][i].x * w[4 * i] + x[j][i].y * w[4 * i + 1];
            sum += x[j][i].z * w[4 * i + 2] + x[j][i].w * w[4 * i + 3];
          }
          acc[t][r] += sum * scales[r][j];
        }
      }
    }
    first += kVecs<T> * kWarp;
    if (first - lane >= vectors) break;
    load(first);
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= a.tokens) break;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = warp_sum(acc[t][r]);
      if (lane == 0 && first_row + r < a.rows) {
        a.out[t * a.out_stride + h * a.out_head_stride + first_row + r] = sum;
      }
    }
  }
}

constexpr int kTile = 64, kDepth = 16, kEach = 4;

template <class T, bool kTransposed>
__global__ void __launch_bounds__(kThreads) tiled_kernel(HeadArguments a) {
  __shared__ float xs[kDepth][kTile + 4], ws[kDepth][kTile + 4];
  if (kTransposed) let_next_start();
  wait_for_previous();
  if (!kTransposed) let_next_start();
  const int h = blockIdx.z, token0 = blockIdx.y * kTile, out0 = blockIdx.x * kTile;
  const int outs = kTransposed ? a.rows : a.cols, inner = kTransposed ? a.cols : a.rows;
  const int tx = threadIdx.x % (kTile / kEach), ty = threadIdx.x / (kTile / kEach);
  const int line = threadIdx.x / kEach, depth = threadIdx.x % kEach * 4;  // what this thread loads
  const float* x = a.x + h * a.x_head_stride;
  float sums[kEach][kEach] = {};
  for (int k0 = 0; k0 < inner; k0 += kDepth) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = k0 + depth + i, t = token0 + line, o = out0 + line;
      xs[depth + i][line] = t < a.tokens && k < inner ? x[t * a.x_stride + k] : 0;
      float w = 0;
      if (o < outs && k < inner) {
        w = kTransposed ? stored_value(a.w, a.row(h, o), k, T{}) : stored_value(a.w, a.row(h, k), o, T{});
      }
      ws[depth + i][line] = w;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const float4 p = *reinterpret_cast<const float4*>(&xs[k][ty * kEach]);
      const float4 q = *reinterpret_cast<const float4*>(&ws[k][tx * kEach]);
      const float left[kEach] = {p.x, p.y, p.z, p.w}, right[kEach] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[i][j] += left[i] * right[j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kEach; ++i) {
    const int t = token0 + ty * kEach + i;
    for (int j = 0; j < kEach; ++j) {
      const int o = out0 + tx * kEach + j;
      if (t < a.tokens && o < outs) a.out[t * a.out_stride + h * a.out_head_stride + o] = sums[i][j];
    }
  }
}

HeadArguments arguments_of(const HeadProject& op) {
  return {.out = op.out.as<float>(),
          .x = op.x.as<float>(),
          .w = stored_matrix(op.w.parts[0]),
          .out_stride = op.out.strides[0],
          .x_stride = op.x.strides[0],
          .out_head_stride = op.out_stride,
          .x_head_stride = op.x_stride,
          .tokens = static_cast<int>(op.x.dim(0)),
          .head_rows = op.head_rows,
          .first = op.first,
          .rows = op.rows,
          .cols = static_cast<int>(op.w.cols)};
}

}  // namespace

const char* refuse_head_rows(const Stream& stream, const HeadProject& op) {
  if (op.x.dim(0) > kMaxTokens) return "too many rows";
  const Tensor& w = op.w.parts[0].data;
  if (!is_plain(w.dtype) && w.dtype != DType::f8e4m3) return "for plain types and E4M3";
  const int64_t vec = 16 / dtype_bytes(w.dtype, 1);
  const BlockScales& scale = op.w.parts[0].scale;
  if (scale && !scale.steady_over(vec, op.w.cols)) return "scales change within 16 columns";
  if (op.w.cols % vec != 0 || w.strides[0] % vec != 0 || !aligned16(w.data)) {
    return "rows of the weight are not aligned";
  }
  if (op.x.strides[0] % 4 != 0 || op.x_stride % 4 != 0 || !aligned16(op.x.data)) {
    return "rows of x are not aligned";
  }
  (void)stream;
  return nullptr;
}

void head_project_rows(Stream& stream, const HeadProject& op) {
  const HeadArguments a = arguments_of(op);
  if (a.tokens == 0) return;
  with_head_element(op.w.parts[0].data.dtype, [&](auto element) {
    using T = decltype(element);
    auto start = [&]<int kTokens>(std::integral_constant<int, kTokens>) {
      const int64_t per_block = op.transposed ? kThreads / kWarp * kRowsPerWarp<T, kTokens>
                                              : kThreads / kGroups * Vec<T>::kElements;
      const int64_t blocks = ceil_div(op.transposed ? a.rows : a.cols, per_block);
      launch(stream.queue(), op.transposed ? transposed_kernel<T, kTokens> : down_kernel<T, kTokens>,
             dim3(static_cast<unsigned>(op.heads), static_cast<unsigned>(blocks)), dim3(kThreads), 0, a);
    };
    if (a.tokens == 1) return start(std::integral_constant<int, 1>{});
    if (a.tokens == 2) return start(std::integral_constant<int, 2>{});
    if (a.tokens <= 4) return start(std::integral_constant<int, 4>{});
    start(std::integral_constant<int, kMaxTokens>{});
  });
}

void head_project_tiled(Stream& stream, const HeadProject& op) {
  const HeadArguments a = arguments_of(op);
  if (a.tokens == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(op.transposed ? a.rows : a.cols, kTile)),
                  static_cast<unsigned>(ceil_div(a.tokens, kTile)), static_cast<unsigned>(op.heads));
  with_stored_element(op.w.parts[0].data.dtype, [&](auto element) {
    using T = decltype(element);
    launch(stream.queue(), op.transposed ? tiled_kernel<T, true> : tiled_kernel<T, false>, grid,
           dim3(kThreads), 0, a);
  });
}

}  // namespace atom::ops::gpu_kernels
