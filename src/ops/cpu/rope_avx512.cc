// Norm, rope and cache store of one head in AVX-512.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx512.h"
// The kernel needs Simd.
#include "ops/cpu/rope_kernel.h"

namespace atom::ops::cpu {

void transform_head_avx512(float* out, const float* in, const HeadTransform& transform) {
  transform_head(out, in, transform);
}
void store_kv_avx512(KvType type, void* out, const float* in, int64_t n) { store_kv(type, out, in, n); }

}  // namespace atom::ops::cpu
#endif
