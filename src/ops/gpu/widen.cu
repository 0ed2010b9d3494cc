// Stored weights written out as plain numbers, for products that read them many times.
// Bound: the bytes read and written. Grid: (columns, rows); a thread widens 8 neighbours.
#include "ops/gpu/kernels.h"
#include "ops/gpu/stored.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 128, kEach = 8;
constexpr int64_t kMaxGridY = 65535;

template <class T, class Out>
__global__ void widen_kernel(Out* out, StoredMatrix m, int64_t first_row, int cols, bool steady) {
  let_next_start();
  wait_for_previous();
  const int64_t row = first_row + blockIdx.y;
  const int col = (blockIdx.x * kThreads + threadIdx.x) * kEach;
  out += row * cols;
  if (!steady || col + kEach > cols) {
    for (int c = col; c < min(col + kEach, cols); ++c) narrow(stored_value(m, row, c, T{}), out[c]);
    return;
  }
  const float scale = stored_scale(m, row, col, T{});
  __align__(16) Out values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) narrow(stored_element(m, row, col + i, T{}) * scale, values[i]);
  constexpr int kPieces = kEach * sizeof(Out) / 16;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    reinterpret_cast<uint4*>(out + col)[i] = reinterpret_cast<const uint4*>(values)[i];
  }
}

}  // namespace

void widen_part(Stream& stream, const Tensor& out, const WeightPart& part) {
  const StoredMatrix m = stored_matrix(part);
  const int64_t rows = part.data.dim(0);
  const int cols = static_cast<int>(part.data.dim(1));
  // Rows of `out` are dense: 16 bytes are aligned in all of them if they are in the second.
  const bool steady = cols % kEach == 0 && (!part.scale || part.scale.steady_over(kEach, cols));
  with_stored_element(part.data.dtype, [&](auto element) {
    with_element(out.dtype, [&](auto wide) {
      using Out = decltype(wide);
      for (int64_t row = 0; row < rows; row += kMaxGridY) {
        launch(stream.queue(), widen_kernel<decltype(element), Out>,
               dim3(static_cast<unsigned>(ceil_div(cols, kThreads * kEach)),
                    static_cast<unsigned>(std::min(kMaxGridY, rows - row))),
               dim3(kThreads), 0, out.as<Out>(), m, row, cols, steady);
      }
    });
  });
}

}  // namespace atom::ops::gpu_kernels
