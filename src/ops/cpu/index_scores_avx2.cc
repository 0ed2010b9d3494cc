// The indexer's work in AVX2.
#if defined(__x86_64__)
#include "ops/cpu/index_kernels.h"
#include "ops/cpu/simd_avx2.h"
// The kernel needs Simd.
#include "ops/cpu/index_scores_kernel.h"

namespace atom::ops::cpu {

const IndexKernels kIndexAvx2 = {index_scores, widen_keys};

}  // namespace atom::ops::cpu
#endif
