// GGUF blocks by 8-bit activations in AVX2: quants are unpacked block by block, products of bytes are exact
// integers, groups are scaled in float32 lanes.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx2.h"
// The kernel needs Simd.
#include "ops/cpu/linear_float_kernel.h"
#include "ops/cpu/linear_int8.h"

namespace atom::ops {
namespace {

__m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// Eight sums of four products of signed bytes; no -128 in x.
__m256i dot(__m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(x, w));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

template <class Format, int tokens>
void row(const Int8Layout& layout, const uint8_t* w, const std::byte* x, int64_t cols, float* out,
         int64_t out_stride) {
  constexpr int kParts = Format::kBlock / 32, kGroups = Format::kBlock / Format::kGroup;
  __m256 dots[tokens];
  float rests[tokens] = {};
  for (__m256& d : dots) d = _mm256_setzero_ps();
  for (int64_t k = 0; k < cols; k += Format::kBlock, w += Format::kBytes) {
    alignas(32) int8_t q[Format::kBlock];
    float d[kGroups], m[kGroups];
    Format::unpack(w, q, d, m);
    for (int part = 0; part < kParts; ++part) {
      const int64_t b = k / 32 + part;
      const __m256i quants = load256(q + 32 * part);
      const __m256 scale = Format::kGroup == 32
                               ? _mm256_set1_ps(d[part])
                               : _mm256_set_m128(_mm_set1_ps(d[kGroups > 1 ? 2 * part + 1 : 0]),
                                                 _mm_set1_ps(d[kGroups > 1 ? 2 * part : 0]));
      for (int t = 0; t < tokens; ++t) {
        const std::byte* token = x + t * layout.token_bytes();
        const __m256 sums = _mm256_cvtepi32_ps(dot(quants, load256(Int8Layout::q(token) + 32 * b)));
        dots[t] = _mm256_fmadd_ps(sums, scale * _mm256_set1_ps(layout.d(token)[b]), dots[t]);
        if (Format::kMin) rests[t] += m[part] * layout.sum32(token)[b];
      }
    }
  }
  for (int t = 0; t < tokens; ++t) out[t * out_stride] = Simd::sum(dots[t]) + rests[t];
}

template <class Format, int tokens>
void rows_by_tokens(const RowJob& job, int64_t first) {
  const Int8Layout layout(job.x.cols);
  const std::byte* x =
      static_cast<const std::byte*>(job.prepared) + (job.first_token + first) * layout.token_bytes();
  for (int64_t r = 0; r < job.rows; ++r) {
    row<Format, tokens>(layout, reinterpret_cast<const uint8_t*>(job.w + r * job.w_stride), x, job.x.cols,
                        job.out + first * job.out_stride + r, job.out_stride);
  }
}

void int8_rows(const RowJob& job) {
  with_format(job.type, [&]<class Format>() {
    int64_t t = 0;
    for (; t + 4 <= job.tokens; t += 4) rows_by_tokens<Format, 4>(job, t);
    for (; t < job.tokens; ++t) rows_by_tokens<Format, 1>(job, t);
  });
}

}  // namespace

const RowKernel kRowsInt8Avx2 = {int8_prepared_bytes, int8_prepare, nullptr, int8_rows, silu_mul, 16};

}  // namespace atom::ops
#endif
