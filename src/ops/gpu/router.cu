// Routers of few rows: the product, and the choice by the block of a row that finishes last.
//   logits[t, e] = x[t] · w[e] + bias[e]; then as ops/moe.h says
// Bound: bytes of w for one row, read before the kernels before have ended; then latency. Grid: (8 rows of w,
// row of x); a warp has one row of w.
#include "ops/gpu/decode_kernels.h"
#include "ops/gpu/route_token.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kLoads = 8;  // of 16 bytes under way per thread
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
  int32_t* counters;  // [token]: blocks that have finished
  RouteArguments route;
};

template <class T, int kEach>
__global__ void __launch_bounds__(kThreads) router_kernel(RouterArguments a) {
  constexpr int kVec = Vec<T>::kElements;
  __shared__ float choices[kEach * kWarp];
  __shared__ bool chooses;
  const int lane = threadIdx.x % kWarp, token = blockIdx.y;
  // Rows of `also` follow those of the logits; warps beyond both read a row for nothing.
  const int row = blockIdx.x * kWarps + threadIdx.x / kWarp, beyond = row - a.logits.rows;
  const bool is_also = beyond >= 0 && beyond < a.also.rows, exists = beyond < a.also.rows;
  const RouterMatrix& m = is_also ? a.also : a.logits;
  const int row_of_m = is_also ? beyond : min(row, a.logits.rows - 1);
  const uint4* w = reinterpret_cast<const uint4*>(static_cast<const T*>(m.w) + row_of_m * m.w_stride);
  const int vectors = a.cols / kVec;
  uint4 raw[kLoads];
  auto load = [&](int first) {
#pragma unroll
    for (int s = 0; s < kLoads; ++s) {
      raw[s] = load_once(w + min(first + s * kWarp, vectors - 1));
    }
  };
  load(lane);
  let_next_start();
  wait_for_previous();

  const auto* x = reinterpret_cast<const float4*>(a.x + token * a.x_stride);
  float sum = 0;
  for (int first = lane; first < vectors; first += kLoads * kWarp) {
    if (first != lane) load(first);
#pragma unroll
    for (int s = 0; s < kLoads; ++s) {
      const int v = first + s * kWarp;
      if (v >= vectors) break;
      float values[kVec];
      widen16(raw[s], values, T{});
#pragma unroll
      for (int i = 0; i < kVec / 4; ++i) {
        const float4 p = x[v * (kVec / 4) + i];
        sum +=
            p.x * values[4 * i] + p.y * values[4 * i + 1] + p.z * values[4 * i + 2] + p.w * values[4 * i + 3];
      }
    }
  }
  sum = warp_sum(sum);
  if (exists && lane == 0)
    m.out[token * m.out_stride + row_of_m] = sum + (m.bias == nullptr ? 0 : m.bias[row_of_m]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    chooses = atomicAdd(a.counters + token, 1) == static_cast<int>(gridDim.x) - 1;
    if (chooses) a.counters[token] = 0;
  }
  __syncthreads();
  if (!chooses || threadIdx.x >= kWarp) return;
  __threadfence();
  route_token<kEach>(a.route, token, choices);
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

void route_few(Stream& stream, const RouteRows& op) {
  const int64_t tokens = op.logits.x.dim(0);
  if (tokens == 0) return;
  const RouterArguments a{.logits = matrix_of(op.logits),
                          .also = matrix_of(op.also),
                          .x = op.logits.x.as<float>(),
                          .x_stride = op.logits.x.strides[0],
                          .cols = static_cast<int>(op.logits.w.cols),
                          .counters = stream.queue().counters(),
                          .route = route_arguments(op.route)};
  const dim3 grid(static_cast<unsigned>(ceil_div(a.logits.rows + a.also.rows, kWarps)),
                  static_cast<unsigned>(tokens));
  with_element(op.logits.w.parts[0].data.dtype, [&](auto element) {
    using T = decltype(element);
    launch(stream.queue(), a.route.experts <= 4 * kWarp ? router_kernel<T, 4> : router_kernel<T, kMostEach>,
           grid, dim3(kThreads), 0, a);
  });
}

}  // namespace atom::ops::gpu_kernels
