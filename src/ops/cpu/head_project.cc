// Per-head products: heads and tiles of tokens are dealt to the team; a few weight rows at a time are widened
// and used for all tokens of the tile.
#include "ops/cpu/head_project.h"

#include <algorithm>
#include <vector>

#include "ops/cpu/dequant.h"
#include "ops/cpu/linear_rows.h"

namespace atom::ops::cpu {
namespace {

constexpr int64_t kTokenTile = 32;
constexpr int64_t kTileFloats = 8192;  // widened weights at a time: half of L1

void project_tile(const HeadProject& op, const HeadProjectKernel& kernel, int64_t head, int64_t first_token,
                  int64_t end_token) {
  thread_local std::vector<float> widened;
  const int64_t cols = op.w.cols;
  const int64_t step = std::clamp<int64_t>(kTileFloats / cols, 1, op.rows);
  if (static_cast<int64_t>(widened.size()) < step * cols) widened.resize(step * cols);
  for (int64_t r = 0; r < op.rows; r += step) {
    const int64_t rows = std::min(step, op.rows - r);
    kernel.products->widen(job_of(op.w.parts[0], head * op.head_rows + op.first + r, rows), widened.data());
    for (int64_t t = first_token; t < end_token; ++t) {
      const float* x = op.x.row<float>(t) + head * op.x_stride;
      float* out = op.out.row<float>(t) + head * op.out_stride;
      if (op.transposed) {
        kernel.dots(out + r, x, widened.data(), rows, cols);
      } else {
        kernel.combine(out, x + r, widened.data(), rows, cols, r > 0);
      }
    }
  }
}

}  // namespace

void head_project(Stream& stream, const HeadProject& op, const HeadProjectKernel& kernel) {
  const int64_t tokens = op.x.dim(0), tiles = (tokens + kTokenTile - 1) / kTokenTile;
  stream.pool().parallel_for(op.heads * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % tiles * kTokenTile;
      project_tile(op, kernel, i / tiles, first, std::min(first + kTokenTile, tokens));
    }
  });
}

void head_project_ref(Stream& stream, const HeadProject& op) {
  const WeightPart& w = op.w.parts[0];
  stream.pool().parallel_for(op.heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> row(op.w.cols);
    std::vector<double> sums;
    for (int64_t h = begin; h < end; ++h) {
      sums.assign(op.x.dim(0) * op.w.cols, 0);
      for (int64_t r = 0; r < op.rows; ++r) {
        dequantize_row(w, h * op.head_rows + op.first + r, row.data());
        for (int64_t t = 0; t < op.x.dim(0); ++t) {
          const float* x = op.x.row<float>(t) + h * op.x_stride;
          double dot = 0;
          for (int64_t c = 0; c < op.w.cols; ++c) {
            if (op.transposed) {
              dot += static_cast<double>(row[c]) * x[c];
            } else {
              sums[t * op.w.cols + c] += static_cast<double>(row[c]) * x[r];
            }
          }
          if (op.transposed) op.out.row<float>(t)[h * op.out_stride + r] = static_cast<float>(dot);
        }
      }
      if (op.transposed) continue;
      for (int64_t t = 0; t < op.x.dim(0); ++t) {
        for (int64_t c = 0; c < op.w.cols; ++c) {
          op.out.row<float>(t)[h * op.out_stride + c] = static_cast<float>(sums[t * op.w.cols + c]);
        }
      }
    }
  });
}

}  // namespace atom::ops::cpu
