// Paged attention in AVX-512.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx512.h"
// The kernel needs Simd.
#include "ops/cpu/attention_kernel.h"

namespace atom::ops::cpu {

void attend_avx512(const AttentionJob& job) { attend_any(job); }

}  // namespace atom::ops::cpu
#endif
