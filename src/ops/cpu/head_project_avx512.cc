// The row kernels of per-head products in AVX-512.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx512.h"
// The kernel needs Simd.
#include "ops/cpu/head_project_kernel.h"

namespace atom::ops::cpu {

void combine_avx512(float* out, const float* x, const float* w, int64_t rows, int64_t cols, bool add) {
  combine(out, x, w, rows, cols, add);
}
void dots_avx512(float* out, const float* x, const float* w, int64_t rows, int64_t cols) {
  dots(out, x, w, rows, cols);
}

}  // namespace atom::ops::cpu
#endif
