// RMS norm: rows dealt to the team when there are enough of them, and the reference row.
#include "ops/cpu/norm_rows.h"

#include <algorithm>
#include <cmath>

#include "comm/communicator.h"

namespace atom::ops::cpu {
namespace {

// Rows that one member takes at a time: at least 16 K floats (a few microseconds), so that waking the team
// pays.
int64_t grain(int64_t n) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n)); }

}  // namespace

void norm_row_ref(float* out, float* x, const float* add, const float* weight, int64_t n, float eps,
                  float weight_offset) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (add != nullptr) x[i] += add[i];
    squares += static_cast<double>(x[i]) * x[i];
  }
  if (out == nullptr) return;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(x[i] * scale * (static_cast<double>(weight_offset) + weight[i]));
  }
}

void add_rms_norm(Stream& stream, const AddRmsNorm& op, NormRow row) {
  if (op.reduce != nullptr && op.reduce->size() > 1) op.reduce->all_reduce(stream, op.add);
  const int64_t n = op.residual.dim(1);
  stream.pool().parallel_for(op.residual.dim(0), grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      row(op.out ? op.out.row<float>(t) : nullptr, op.residual.row<float>(t),
          op.add ? op.add.row<float>(t) : nullptr, op.weight.as<float>(), n, op.eps, op.weight_offset);
    }
  });
}

void rms_norm(Stream& stream, const RmsNorm& op, NormRow row) {
  const int64_t n = op.x.dim(1);
  stream.pool().parallel_for(op.x.dim(0), grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      row(op.out.row<float>(t), op.x.row<float>(t), nullptr, op.weight.as<float>(), n, op.eps,
          op.weight_offset);
    }
  });
}

}  // namespace atom::ops::cpu
