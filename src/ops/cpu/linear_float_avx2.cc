// Float32 products in AVX2.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx2.h"
// The kernel needs Simd.
#include "ops/cpu/linear_float_kernel.h"

namespace atom::ops {

const RowKernel kRowsAvx2 = {nullptr, nullptr, nullptr, float_rows, silu_mul, kTileRows, widen_rows};

}  // namespace atom::ops
#endif
