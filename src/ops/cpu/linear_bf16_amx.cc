// bf16 weights by bf16 activations in AMX tiles, sums in float32: A tiles straight from the checkpoint.
//
// A tile product takes 16 cycles for 1 KiB of weights, so one token already runs at the speed of memory, and
// all token counts share one order of sums: columns in steps of 32 from left to right. A row's result has the
// same bits alone and in any batch.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx512.h"
// The kernels need Simd.
#include "ops/cpu/bf16_tiles.h"
#include "ops/cpu/linear_float_kernel.h"

namespace atom::ops {
namespace {

// Up to 16 rows with zeros around them.
WeightTiles padded_tile(const RowJob& job, int64_t row, int64_t rows) {
  const int64_t stride = steps(job.x.cols) * kStep * 2, bytes = job.x.cols * 2;
  for (int64_t r = 0; r < 16; ++r) {
    std::byte* line = job.scratch + r * stride;
    const int64_t used = r < rows ? bytes : 0;
    if (used > 0) std::memcpy(line, job.w + (row + r) * job.w_stride, static_cast<size_t>(used));
    std::memset(line + used, 0, static_cast<size_t>(stride - used));
  }
  return {job.scratch, stride, steps(job.x.cols)};
}

void bf16_rows(const RowJob& job) {
  if (job.type != DType::bf16) return scaled_tile_rows(job);
  const int64_t whole = job.x.cols % kStep == 0 ? job.rows / 16 * 16 : 0;
  if (whole > 0) all_tokens(job, {job.w, job.w_stride, steps(job.x.cols)}, whole, job.out);
  for (int64_t r = whole; r < job.rows; r += 16) {
    const int64_t rows = job.rows - r < 16 ? job.rows - r : 16;
    all_tokens(job, padded_tile(job, r, rows), rows, job.out + r);
  }
  _tile_release();
}

}  // namespace

const RowKernel kRowsBf16Amx = {prepared_bytes, prepare, scaled_tile_scratch, bf16_rows, silu_mul, 64};

}  // namespace atom::ops
#endif
