// Table look-up and row gathering.
// Bound: the bytes of the rows, for few of them latency. Grid: (row, part of its columns).
#include "ops/gpu/kernels.h"
#include "ops/gpu/stored.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 256, kLoads = 8;  // of a thread, under way at once
constexpr int64_t kFewRows = 64;           // that do not fill the device by themselves

// Writes value(i) to all columns i of a row, which blocks of the grid's second dimension share.
template <class Value>
__device__ inline void fill_row(float* out, int cols, Value value) {
  const int step = kThreads * gridDim.y;
  for (int first = blockIdx.y * kThreads + threadIdx.x; first < cols; first += kLoads * step) {
    float v[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * step;
      v[k] = i < cols ? value(i) : 0;
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (const int i = first + k * step; i < cols) out[i] = v[k];
    }
  }
}

// out[t] = table[ids[t] - first] for ids of this part; a row that no part of the table has is zeroed by the
// part that is told to.
template <class T>
__global__ void embed_kernel(float* out, int64_t out_stride, StoredMatrix table, const int32_t* ids,
                             int64_t first, int64_t rows, int64_t all_first, int64_t all_rows, bool zero,
                             int cols) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  const int64_t row = ids[t] - first, of_all = ids[t] - all_first;
  out += t * out_stride;
  if (row >= 0 && row < rows) {
    fill_row(out, cols, [&](int i) { return stored_value(table, row, i, T{}); });
  } else if (zero && (of_all < 0 || of_all >= all_rows)) {
    fill_row(out, cols, [](int) { return 0.0f; });
  }
}

__global__ void gather_kernel(float* out, int64_t out_stride, const float* x, int64_t x_stride,
                              const int32_t* rows, int cols) {
  let_next_start();
  wait_for_previous();
  out += blockIdx.x * out_stride;
  x += rows[blockIdx.x] * x_stride;
  fill_row(out, cols, [&](int i) { return x[i]; });
}

dim3 grid_of(int64_t rows, int64_t cols) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>(rows <= kFewRows ? ceil_div(cols, kThreads) : 1));
}

}  // namespace

void embed(Stream& stream, const Embed& op) {
  if (op.out.dim(0) == 0) return;
  int64_t first = op.first_id;
  bool zero = true;
  for (const WeightPart& part : op.table.parts) {
    with_stored_element(part.data.dtype, [&](auto element) {
      using T = decltype(element);
      launch(stream.queue(), embed_kernel<T>, grid_of(op.out.dim(0), op.table.cols), dim3(kThreads), 0,
             op.out.as<float>(), op.out.strides[0], stored_matrix(part), op.ids.data(), first,
             part.data.dim(0), op.first_id, op.table.rows, zero, static_cast<int>(op.table.cols));
    });
    first += part.data.dim(0);
    zero = false;
  }
}

void gather_rows(Stream& stream, const GatherRows& op) {
  if (op.rows.empty()) return;
  launch(stream.queue(), gather_kernel, grid_of(static_cast<int64_t>(op.rows.size()), op.x.dim(1)),
         dim3(kThreads), 0, op.out.as<float>(), op.out.strides[0], op.x.as<float>(), op.x.strides[0],
         op.rows.data(), static_cast<int>(op.x.dim(1)));
}

}  // namespace atom::ops::gpu_kernels
