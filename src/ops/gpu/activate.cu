// The element-wise passes between products: activation of a gated product, and rounding to what the next one
// reads.
// Bound: the bytes read and written. Grid: (columns, rows); a thread has 8 neighbours, of the activation
// twice.
#include <algorithm>
#include <type_traits>

#include "ops/gpu/deferred.h"
#include "ops/gpu/elements.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 128, kEach = 8;
constexpr int kTurns = 2;  // of an activation's thread
constexpr int64_t kMaxGridY = 65535;

// Eight elements from `from`, or as many as there are.
template <class T>
__device__ void load_eight(const T* from, int count, bool in_vectors, float (&to)[kEach]) {
  if (!in_vectors) {
    for (int k = 0; k < kEach; ++k) to[k] = k < count ? widen(from[k]) : 0;
    return;
  }
  constexpr int kVec = Vec<T>::kElements;
#pragma unroll
  for (int k = 0; k < kEach; k += kVec) {
    float wide[kVec];
    widen16(*reinterpret_cast<const uint4*>(from + k), wide, T{});
#pragma unroll
    for (int j = 0; j < kVec; ++j) to[k + j] = wide[j];
  }
}
template <class T>
__device__ void store_eight(T* to, int count, bool in_vectors, const float (&from)[kEach]) {
  __align__(16) T narrowed[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) narrow(from[k], narrowed[k]);
  if (!in_vectors) {
    for (int k = 0; k < min(count, kEach); ++k) to[k] = narrowed[k];
    return;
  }
#pragma unroll
  for (int k = 0; k < kEach / Vec<T>::kElements; ++k) {
    reinterpret_cast<uint4*>(to)[k] = reinterpret_cast<const uint4*>(narrowed)[k];
  }
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(Out* out, int64_t out_stride, const In* both,
                                                            int64_t both_stride, int half, bool in_vectors) {
  constexpr bool kExact = std::is_same_v<Out, float>;
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.y;
  const In* from = both + t * both_stride;
  float gate[kTurns][kEach], up[kTurns][kEach];
  auto first_of = [](int turn) {
    return static_cast<int>((blockIdx.x * kTurns + turn) * kThreads + threadIdx.x) * kEach;
  };
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = first_of(turn);
    if (i >= half) break;
    load_eight(from + i, half - i, in_vectors, gate[turn]);
    load_eight(from + half + i, half - i, in_vectors, up[turn]);
  }
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = first_of(turn);
    if (i >= half) break;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const float x = gate[turn][k];
      gate[turn][k] = (kExact ? x / (1 + expf(-x)) : __fdividef(x, 1 + __expf(-x))) * up[turn][k];
    }
    store_eight(out + t * out_stride + i, half - i, in_vectors, gate[turn]);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    round_kernel(T* out, int64_t out_stride, const float* x, int64_t x_stride, int cols, bool in_vectors) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.y;
  const int i = (blockIdx.x * kThreads + threadIdx.x) * kEach;
  if (i >= cols) return;
  float values[kEach];
  load_eight(x + t * x_stride + i, cols - i, in_vectors, values);
  store_eight(out + t * out_stride + i, cols - i, in_vectors, values);
}

// Three bf16 whose sum is x, exactly: each takes the next eight bits.
__global__ void __launch_bounds__(kThreads) split_kernel(Bf16* out, int64_t part_stride, const float* x,
                                                         int64_t x_stride, int cols, bool in_vectors) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.y;
  const int i = (blockIdx.x * kThreads + threadIdx.x) * kEach;
  if (i >= cols) return;
  float rest[kEach];
  load_eight(x + t * x_stride + i, cols - i, in_vectors, rest);
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    float high[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      high[k] = __uint_as_float(__float_as_uint(rest[k]) & 0xFFFF0000u);
      rest[k] = isfinite(high[k]) ? rest[k] - high[k] : 0;
    }
    store_eight(out + part * part_stride + t * cols + i, cols - i, in_vectors, high);
  }
}

// Rows that may be read and written 16 bytes at a time, eight elements each.
bool in_eights(const Tensor& t) { return aligned16(t.data) && t.strides[0] % kEach == 0; }

// fn(first row, rows) for as many rows as a grid has.
template <class Fn>
void in_grids(int64_t rows, const Fn& fn) {
  for (int64_t t = 0; t < rows; t += kMaxGridY) fn(t, static_cast<unsigned>(std::min(kMaxGridY, rows - t)));
}
unsigned blocks_of(int cols, int turns = 1) {
  return static_cast<unsigned>(ceil_div(cols, kThreads * kEach * turns));
}

}  // namespace

void silu_mul(Stream& stream, const Tensor& out, const Tensor& both) {
  const int half = static_cast<int>(out.dim(1));
  const bool in_vectors = half % kEach == 0 && in_eights(out) && in_eights(both);
  with_element(both.dtype, [&](auto in) {
    with_element(out.dtype, [&](auto narrow) {
      using In = decltype(in);
      using Out = decltype(narrow);
      in_grids(out.dim(0), [&](int64_t t, unsigned rows) {
        launch(stream.queue(), silu_mul_kernel<In, Out>, dim3(blocks_of(half, kTurns), rows), dim3(kThreads),
               0, out.row<Out>(t), out.strides[0], both.row<In>(t), both.strides[0], half, in_vectors);
      });
    });
  });
}

void round_rows(Stream& stream, const Tensor& out, const Tensor& x) {
  const int cols = static_cast<int>(x.dim(1));
  const bool in_vectors = cols % kEach == 0 && in_eights(out) && in_eights(x);
  with_element(out.dtype, [&](auto element) {
    using T = decltype(element);
    in_grids(x.dim(0), [&](int64_t t, unsigned rows) {
      launch(stream.queue(), round_kernel<T>, dim3(blocks_of(cols), rows), dim3(kThreads), 0, out.row<T>(t),
             out.strides[0], x.row<float>(t), x.strides[0], cols, in_vectors);
    });
  });
}

void split_rows(Stream& stream, const Tensor& out, const Tensor& x) {
  const int64_t tokens = x.dim(0), cols = x.dim(1);
  const bool in_vectors = cols % kEach == 0 && aligned16(out.data) && in_eights(x);
  in_grids(tokens, [&](int64_t t, unsigned rows) {
    launch(stream.queue(), split_kernel, dim3(blocks_of(static_cast<int>(cols)), rows), dim3(kThreads), 0,
           out.as<Bf16>() + t * cols, tokens * cols, x.row<float>(t), x.strides[0], static_cast<int>(cols),
           in_vectors);
  });
}

void DeferredActivation::start(gpu::Queue& queue) {
  Stream stream(queue);
  silu_mul(stream, out, both);
}

void DeferredActivation::start_rounded(gpu::Queue& queue, const Tensor& rounded, bool) {
  Stream stream(queue);
  silu_mul(stream, rounded, both);
}

}  // namespace atom::ops::gpu_kernels
