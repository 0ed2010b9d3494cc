// Paged attention in AVX2.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx2.h"
// The kernel needs Simd.
#include "ops/cpu/attention_kernel.h"

namespace atom::ops::cpu {

void attend_avx2(const AttentionJob& job) { attend_any(job); }

}  // namespace atom::ops::cpu
#endif
