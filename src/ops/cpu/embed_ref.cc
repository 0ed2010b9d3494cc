// Embedding look-up and row gathering: one row at a time, rows dealt to the team when there are many.
#include "ops/cpu/embed_ref.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/dequant.h"

namespace atom::ops::cpu {
namespace {

// Rows that one member takes at a time: at least 16 K floats, so that waking the team pays.
int64_t grain(int64_t cols) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, cols)); }

void embed_row(const Embed& op, int64_t t) {
  float* out = op.out.row<float>(t);
  int64_t row = op.ids[t] - op.first_id;
  if (row < 0 || row >= op.table.rows) {
    std::memset(out, 0, static_cast<size_t>(op.table.cols) * sizeof(float));
    return;
  }
  for (const WeightPart& part : op.table.parts) {
    if (row < part.data.dim(0)) {
      return dequantize_row(part, row, out);
    }
    row -= part.data.dim(0);
  }
}

}  // namespace

void embed_ref(Stream& stream, const Embed& op) {
  stream.pool().parallel_for(op.out.dim(0), grain(op.table.cols), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) embed_row(op, t);
  });
}

void gather_rows_ref(Stream& stream, const GatherRows& op) {
  const int64_t cols = op.x.dim(1);
  stream.pool().parallel_for(op.out.dim(0), grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(op.out.row<float>(i), op.x.row<float>(op.rows[i]),
                  static_cast<size_t>(cols) * sizeof(float));
    }
  });
}

}  // namespace atom::ops::cpu
