// Grouped products with MXFP4 in pieces for few rows of x per expert, on Hopper: which kernel.
#include "ops/cuda/piece_kernel.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int64_t kMemory = 226 << 10;  // shared, of a block, beside what the kernel declares itself

template <class C>
bool fits(int cols) {
  return C::memory(cols) <= kMemory;
}

template <class C>
void start(Stream& stream, const GroupedProduct& a, const void* x) {
  gpu::Queue& queue = stream.queue();
  launch(queue, piece_kernel<C>, dim3(static_cast<unsigned>(queue.processors())), dim3(C::kThreads),
         static_cast<size_t>(C::memory(a.cols)), a, x);
}

}  // namespace

bool piece_product_fits(int cols, int tile) {
  return tile <= 8 ? fits<PieceCut<8, 1>>(cols) : tile <= 16 && fits<PieceCut<16, 1>>(cols);
}

void start_piece_product(Stream& stream, GroupedProduct a, const void* x, int tile) {
  a.row_tiles = static_cast<int>(ceil_div(a.rows, a.gated ? kPieceRows : 2 * kPieceRows));
  a.runs = piece_runs(a.cols);
  if (a.one_row) return start<PieceCut<8, 2, true>>(stream, a, x);
  if (tile > 8) return start<PieceCut<16, 1>>(stream, a, x);
  fits<PieceCut<8, 2>>(a.cols) ? start<PieceCut<8, 2>>(stream, a, x) : start<PieceCut<8, 1>>(stream, a, x);
}

}  // namespace atom::ops::gpu_kernels
