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

// A run of blocks taken apart; apart from the products, because a load that follows smaller stores waits.
template <class Format>
struct Unpacked {
  static constexpr int kColumns = 512, kBlockGroups = Format::kBlock / Format::kGroup;
  alignas(32) int8_t q[kColumns];
  float d[kColumns / Format::kGroup], m[kColumns / Format::kGroup];

  void unpack(const uint8_t* p, int64_t columns) {
    for (int64_t k = 0; k < columns; k += Format::kBlock, p += Format::kBytes) {
      Format::unpack(p, q + k, d + k / Format::kGroup, m + k / Format::kGroup);
    }
  }
  __m256 scale(int64_t unit) const {  // of 32 columns
    if (Format::kGroup == 32) return _mm256_set1_ps(d[unit]);
    return _mm256_set_m128(_mm_set1_ps(d[2 * unit + 1]), _mm_set1_ps(d[2 * unit]));
  }
};

template <class Format, int tokens>
void row(const Int8Layout& layout, const uint8_t* p, const std::byte* x, int64_t cols, float* out,
         int64_t out_stride) {
  Unpacked<Format> w;
  constexpr int kRunBytes = w.kColumns / Format::kBlock * Format::kBytes;
  __m256 dots[tokens];
  float rests[tokens] = {};
  for (__m256& d : dots) d = _mm256_setzero_ps();
  for (int64_t k = 0; k < cols; k += w.kColumns, p += kRunBytes) {
    const int64_t columns = cols - k < w.kColumns ? cols - k : w.kColumns;
    w.unpack(p, columns);
    for (int64_t unit = 0; unit < columns / 32; ++unit) {
      const int64_t b = k / 32 + unit;
      const __m256i quants = load256(w.q + 32 * unit);
      const __m256 scale = w.scale(unit);
      for (int t = 0; t < tokens; ++t) {
        const std::byte* token = x + t * layout.token_bytes();
        const __m256 sums = _mm256_cvtepi32_ps(dot(quants, load256(Int8Layout::q(token) + 32 * b)));
        dots[t] = _mm256_fmadd_ps(sums, scale * _mm256_set1_ps(layout.d(token)[b]), dots[t]);
        if (Format::kMin) rests[t] += w.m[unit] * layout.sum32(token)[b];
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
