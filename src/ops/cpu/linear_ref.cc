#include "ops/cpu/linear_ref.h"

#include <cmath>

#include "ops/cpu/dequant.h"
#include "ops/cpu/linear_rows.h"

namespace atom::ops {
namespace {

void reference_rows(const Linear& op, const WeightPart& part, int64_t first_row, int64_t row) {
  const int64_t cols = op.w.cols;
  auto* w = reinterpret_cast<float*>(thread_scratch(kKernelScratch, cols * 4));
  dequantize_row(part, row, w);
  for (int64_t t = 0; t < op.x.dim(0); ++t) {
    const float* x = op.x.row<float>(t);
    double sum = 0;
    for (int64_t k = 0; k < cols; ++k) sum += static_cast<double>(w[k]) * x[k];
    if (op.bias) sum += op.bias.as<float>()[first_row + row];
    op.out.row<float>(t)[first_row + row] = static_cast<float>(sum);
  }
}

}  // namespace

void linear_ref(Stream& stream, const Linear& op) {
  stream.pool().parallel_for(op.w.rows, 16, [&](int64_t begin, int64_t end) {
    int64_t first_row = 0;
    for (const WeightPart& part : op.w.parts) {
      const int64_t rows = part.data.dim(0);
      for (int64_t r = std::max(begin, first_row); r < std::min(end, first_row + rows); ++r) {
        reference_rows(op, part, first_row, r - first_row);
      }
      first_row += rows;
    }
  });
}

void gated_up_composed(Stream& stream, const GatedUp& op) {
  const int64_t tokens = op.x.dim(0), half = op.w.rows / 2;
  void* memory = thread_scratch(kComposedScratch, tokens * op.w.rows * 4);
  const Tensor both = make_tensor(memory, DType::f32, {tokens, op.w.rows});
  run(stream, Linear{both, op.x, op.w, op.bias, op.precision});
  stream.pool().parallel_for(tokens, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* gate = both.row<float>(t);
      float* out = op.out.row<float>(t);
      for (int64_t i = 0; i < half; ++i) out[i] = gate[i] / (1 + std::exp(-gate[i])) * gate[half + i];
    }
  });
}

}  // namespace atom::ops
