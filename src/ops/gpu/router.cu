// Routers of few rows: the norm before them, the product, and the choice by the block of a row that finishes
// last.
//   logits[t, e] = x[t] · w[e] + bias[e]; then as ops/moe.h says
// Bound: latency; the bytes of w for one row are read before the kernels before have ended. Grid: (some rows
// of w, row of x); the threads of a block share the columns, so that a block reads x once.
#include "ops/gpu/block_sum.h"
#include "ops/gpu/decode_kernels.h"
#include "ops/gpu/deferred.h"
#include "ops/gpu/finished.h"
#include "ops/gpu/route_token.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMaxTokens = 8;

// One of the two products.
struct RouterMatrix {
  float* out;
  const void* w;
  const float* bias;  // null or of the rows
  int64_t out_stride, w_stride;
  int rows;
};

struct RouterArguments {
  RouterMatrix logits, also;
  const float* x;
  int64_t x_stride;
  int cols;
  // Folded in, or null: x is multiplied by (offset + norm_weight) / rms(x), and the result is `normed`.
  const float* norm_weight;
  float norm_eps, norm_offset;
  float* normed;
  int32_t* counters;  // [token]: blocks that have finished
  bool shows_x;       // the next kernel starts when x is there, and may read it before it waits
  RouteArguments route;
};

// Columns that the threads of a block have in registers.
template <class T, int kVecs>
constexpr int kKept = kVecs* kThreads* Vec<T>::kElements;

// kRows of w per block, kVecs times 16 bytes of each per thread.
template <class T, int kRows, int kVecs>
__global__ void __launch_bounds__(kThreads) router_kernel(RouterArguments a) {
  static_assert(kRows * kWarps <= kWarp);
  constexpr int kVec = Vec<T>::kElements, kFours = kVec / 4;
  __shared__ float parts[kRows * kWarps];
  __shared__ bool chooses;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, token = blockIdx.y;
  const int vectors = a.cols / kVec, first_row = blockIdx.x * kRows;
  // Rows of `also` follow those of the logits; beyond both, the last is read again for nothing.
  const int rows = a.logits.rows + a.also.rows;
  const uint4* w[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = min(first_row + r, rows - 1), beyond = row - a.logits.rows;
    const auto* begin = static_cast<const T*>(beyond < 0 ? a.logits.w : a.also.w);
    const int64_t stride = beyond < 0 ? a.logits.w_stride : a.also.w_stride;
    w[r] = reinterpret_cast<const uint4*>(begin + (beyond < 0 ? row : beyond) * stride);
  }
  uint4 raw[kRows][kVecs];
  auto load = [&](int first) {
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      const int v = first + j * kThreads;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        raw[r][j] = {};
        if (v < vectors) raw[r][j] = load_once(w[r] + v);
      }
    }
  };
  load(threadIdx.x);
  // The sum that a lane of the first warp will write.
  const int row = first_row + lane / kWarps, beyond = row - a.logits.rows;
  const bool sums_up = warp == 0 && lane % kWarps == 0 && lane < kRows * kWarps && row < rows;
  float* out = beyond < 0 ? a.logits.out + row : a.also.out + beyond;
  const float* biases = beyond < 0 ? a.logits.bias : a.also.bias;
  float bias = 0;
  if (sums_up && biases != nullptr) bias = biases[beyond < 0 ? row : beyond];
  float4 norm_weight[kVecs][kFours] = {};
  if (a.norm_weight != nullptr) {
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      const int v = threadIdx.x + j * kThreads;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        if (v < vectors) norm_weight[j][i] = reinterpret_cast<const float4*>(a.norm_weight)[v * kFours + i];
      }
    }
  }
  if (!a.shows_x) let_next_start();
  wait_for_previous();
  if (a.shows_x) let_next_start();

  const auto* from = reinterpret_cast<const float4*>(a.x + token * a.x_stride);
  float4 x[kVecs][kFours];
  auto load_x = [&](int first) {
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      const int v = first + j * kThreads;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        x[j][i] = {};
        if (v < vectors) x[j][i] = from[v * kFours + i];
      }
    }
  };
  load_x(threadIdx.x);
  if (a.norm_weight != nullptr) {  // all columns are in registers
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const float4 v = x[j][i];
        squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
      }
    }
    const float scale = 1 / sqrtf(block_sum<kThreads>(squares) / static_cast<float>(a.cols) + a.norm_eps);
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
      const int v = threadIdx.x + j * kThreads;
      const bool stores = v < vectors && v / kWarp % gridDim.x == blockIdx.x;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const float4 p = x[j][i], n = norm_weight[j][i];
        const float offset = a.norm_offset;
        x[j][i] = {p.x * scale * (offset + n.x), p.y * scale * (offset + n.y), p.z * scale * (offset + n.z),
                   p.w * scale * (offset + n.w)};
        if (stores) reinterpret_cast<float4*>(a.normed)[v * kFours + i] = x[j][i];
      }
    }
  }
  float sums[kRows] = {};
  for (int first = threadIdx.x;;) {
#pragma unroll
    for (int j = 0; j < kVecs; ++j) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float values[kVec];
        widen16(raw[r][j], values, T{});
#pragma unroll
        for (int i = 0; i < kFours; ++i) {
          const float4 p = x[j][i];
          sums[r] += p.x * values[4 * i] + p.y * values[4 * i + 1] + p.z * values[4 * i + 2] +
                     p.w * values[4 * i + 3];
        }
      }
    }
    first += kVecs * kThreads;
    if (first - static_cast<int>(threadIdx.x) >= vectors) break;
    load(first);
    load_x(first);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sums[r] = warp_sum(sums[r]);
    if (lane == 0) parts[r * kWarps + warp] = sums[r];
  }
  __syncthreads();
  if (warp == 0) {
    float sum = lane < kRows * kWarps ? parts[lane] : 0;
#pragma unroll
    for (int mask = kWarps / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (sums_up) out[token * (beyond < 0 ? a.logits.out_stride : a.also.out_stride)] = sum + bias;
    sync_warp();
    if (lane == 0) chooses = count_finished(a.counters + token) == static_cast<int>(gridDim.x) - 1;
  }
  __syncthreads();
  if (!chooses) return;
  if (threadIdx.x == 0) a.counters[token] = 0;
  route_token_by_block<kThreads>(a.route, token);
}

const char* refuse_product(const Linear& op) {
  if (op.w.parts.size() != 1 || !is_plain(op.w.parts[0].data.dtype)) return "for one matrix of a plain type";
  const Tensor& w = op.w.parts[0].data;
  const int64_t vec = 16 / dtype_bytes(w.dtype, 1);
  if (op.w.cols % vec != 0 || w.strides[0] % vec != 0 || !aligned16(w.data) || op.x.strides[0] % 4 != 0 ||
      !aligned16(op.x.data)) {
    return "rows are not aligned";
  }
  return nullptr;
}

RouterMatrix matrix_of(const Linear& op) {
  if (!op.out) return {};
  const Tensor& w = op.w.parts[0].data;
  return {op.out.as<float>(), w.data,       op.bias.as<float>(),
          op.out.strides[0],  w.strides[0], static_cast<int>(w.dim(0))};
}

template <class T, int kRows, int kVecs>
void start(gpu::Queue& queue, RouterArguments a, int64_t tokens) {
  if (a.cols <= kKept<T, kVecs>) take_norm(queue, a);  // else x does not fit
  const dim3 grid(static_cast<unsigned>(ceil_div(a.logits.rows + a.also.rows, kRows)),
                  static_cast<unsigned>(tokens));
  launch(queue, router_kernel<T, kRows, kVecs>, grid, dim3(kThreads), 0, a);
}

}  // namespace

const char* refuse_route_few(const Stream&, const RouteRows& op) {
  if (op.logits.x.dim(0) > kMaxTokens) return "too many rows";
  if (const char* reason = refuse_product(op.logits)) return reason;
  if (!routes_in_registers(route_arguments(op.route))) return "too many experts, choices or groups";
  if (!op.also.out) return nullptr;
  if (const char* reason = refuse_product(op.also)) return reason;
  return op.also.w.parts[0].data.dtype == op.logits.w.parts[0].data.dtype ? nullptr
                                                                          : "products of different types";
}

void route_few(Stream& stream, const RouteRows& op) { route_few_then(stream, op, false); }

void route_few_then(Stream& stream, const RouteRows& op, bool shows_x) {
  const int64_t tokens = op.logits.x.dim(0);
  if (tokens == 0) return;
  gpu::Queue& queue = stream.queue();
  const RouterArguments a{.logits = matrix_of(op.logits),
                          .also = matrix_of(op.also),
                          .x = op.logits.x.as<float>(),
                          .x_stride = op.logits.x.strides[0],
                          .cols = static_cast<int>(op.logits.w.cols),
                          .norm_weight = nullptr,
                          .norm_eps = 0,
                          .norm_offset = 0,
                          .normed = nullptr,
                          .counters = queue.counters(),
                          .shows_x = shows_x,
                          .route = route_arguments(op.route)};
  // As many blocks as there are processors, if that covers the rows.
  const int64_t rows = ceil_div(a.logits.rows + a.also.rows, queue.processors());
  with_element(op.logits.w.parts[0].data.dtype, [&](auto element) {
    using T = decltype(element);
    if (rows == 1) return start<T, 1, 4>(queue, a, tokens);
    if (rows == 2) return start<T, 2, 4>(queue, a, tokens);
    start<T, 4, 2>(queue, a, tokens);
  });
}

}  // namespace atom::ops::gpu_kernels
