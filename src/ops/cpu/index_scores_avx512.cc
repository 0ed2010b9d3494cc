// The indexer's scores in AVX-512.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx512.h"
// The kernel needs Simd.
#include "ops/cpu/index_scores_kernel.h"

namespace atom::ops::cpu {

void index_scores_avx512(float* scores, const float* q, const float* weights, int64_t heads, int64_t dim,
                         const float* keys, int64_t n) {
  index_scores(scores, q, weights, heads, dim, keys, n);
}

}  // namespace atom::ops::cpu
#endif
