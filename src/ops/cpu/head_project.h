// Per-head products: the driver and the row kernels of each instruction set.
#pragma once
#include "ops/cpu/linear_kernel.h"
#include "ops/latent_attention.h"

namespace atom::ops::cpu {

// w is [rows, cols] float32, rows one after the other.
struct HeadProjectKernel {
  // out[c] = sum of x[r] * w[r][c], on top of what out holds if `add`.
  void (*combine)(float* out, const float* x, const float* w, int64_t rows, int64_t cols, bool add);
  // out[r] = sum of w[r][c] * x[c].
  void (*dots)(float* out, const float* x, const float* w, int64_t rows, int64_t cols);
  const RowKernel* products;  // whose widen() fills w
};

void head_project(Stream& stream, const HeadProject& op, const HeadProjectKernel& kernel);
void head_project_ref(Stream& stream, const HeadProject& op);

void combine_avx2(float* out, const float* x, const float* w, int64_t rows, int64_t cols, bool add);
void combine_avx512(float* out, const float* x, const float* w, int64_t rows, int64_t cols, bool add);
void dots_avx2(float* out, const float* x, const float* w, int64_t rows, int64_t cols);
void dots_avx512(float* out, const float* x, const float* w, int64_t rows, int64_t cols);

inline constexpr HeadProjectKernel kHeadProjectAvx2 = {combine_avx2, dots_avx2, &kRowsAvx2};
inline constexpr HeadProjectKernel kHeadProjectAvx512 = {combine_avx512, dots_avx512, &kRowsAvx512};

}  // namespace atom::ops::cpu
