// The RMS norm row in AVX2.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx2.h"
// The kernel needs Simd.
#include "ops/cpu/norm_kernel.h"

namespace atom::ops::cpu {

void norm_row_avx2(float* out, float* x, const float* add, const float* weight, int64_t n, float eps,
                   float weight_offset) {
  norm_row(out, x, add, weight, n, eps, weight_offset);
}

}  // namespace atom::ops::cpu
#endif
