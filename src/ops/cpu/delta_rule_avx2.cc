// The delta rule of one head in AVX2.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx2.h"
// The kernel needs Simd.
#include "ops/cpu/delta_head_kernel.h"

namespace atom::ops::cpu {

void delta_head_avx2(const DeltaHead& head) { delta_head(head); }

}  // namespace atom::ops::cpu
#endif
