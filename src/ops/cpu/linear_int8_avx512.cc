// GGUF blocks by 8-bit activations with VNNI, for few tokens: each weight row is read once, in place.
//
// w = d (u - offset) or d u + m with unsigned quants u, x = dx q, so a group of 32 (16) columns adds
// d dx sum(u q) and, apart, m or -offset d times dx sum(q). Sums of u q are exact integers; groups are scaled
// in float32 lanes. The bound is unpacking: about 0.1 cycles per weight.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx512.h"
// The kernel needs Simd.
#include "ops/cpu/linear_float_kernel.h"
#include "ops/cpu/linear_int8.h"

namespace atom::ops {
namespace {

__m128i load128(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
__m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// 16-bit shift counts: a for even 128-bit lanes and b for odd ones; a for the low half and b for the high
// one.
__m512i counts_by_lane(int a, int b) {
  const __m512i low = _mm512_set1_epi16(static_cast<short>(a)),
                high = _mm512_set1_epi16(static_cast<short>(b));
  return _mm512_mask_blend_epi64(0xCC, low, high);
}
__m512i counts_by_half(int a, int b) {
  const __m512i low = _mm512_set1_epi16(static_cast<short>(a)),
                high = _mm512_set1_epi16(static_cast<short>(b));
  return _mm512_mask_blend_epi64(0xF0, low, high);
}
__m512i nibbles(__m512i bytes, __m512i counts) {
  return _mm512_and_si512(_mm512_srlv_epi16(bytes, counts), _mm512_set1_epi8(0xF));
}

// The first two half floats of `count` blocks, in float32; zeros beyond.
struct Halves {
  __m512 first, second;
};
template <int stride>
Halves gather_halves(const uint8_t* p, int count) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i index = _mm512_mullo_epi32(lane, _mm512_set1_epi32(stride));
  const auto mask = static_cast<__mmask16>((1u << count) - 1);
  const __m512i pairs = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, index, p, 1);
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)),
          _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)))};
}

// Per format: columns of a stripe (16 scales), how its scales are read (count: blocks of the stripe that
// exist), and 64 quants from column 64 * unit of a stripe. A missing second block repeats the first: its
// scale is zero.
struct Scales {
  __m512 d, m;
};

template <class Format>
struct Vnni;

template <class Format, int quants_at>
struct VnniNibbles {
  static constexpr int kStripe = 512;
  static __m512i pair(const uint8_t* p, int unit, bool second) {
    const uint8_t* a = p + 2 * unit * Format::kBytes + quants_at;
    const uint8_t* b = second ? a + Format::kBytes : a;
    const __m512i bytes = _mm512_broadcast_i32x4(load128(a));
    return nibbles(_mm512_mask_broadcast_i32x4(bytes, 0xFF00, load128(b)), counts_by_lane(0, 4));
  }
  // Adds 16 where the word of fifth bits says so.
  static __m512i with_fifth_bits(__m512i low, const uint8_t* p, int unit, bool second) {
    const uint8_t* a = p + 2 * unit * Format::kBytes + quants_at - 4;
    const uint8_t* b = second ? a + Format::kBytes : a;
    const __mmask64 high = load_u32(a) | static_cast<uint64_t>(load_u32(b)) << 32;
    return _mm512_mask_add_epi8(low, high, low, _mm512_set1_epi8(16));
  }
};

template <>
struct Vnni<Q4_0> : VnniNibbles<Q4_0, 2> {
  static constexpr float kOffset = 8;
  static Scales scales(const uint8_t* p, int count) {
    return {gather_halves<18>(p, count).first, _mm512_setzero_ps()};
  }
  static __m512i quants(const uint8_t* p, int unit, bool second) { return pair(p, unit, second); }
};

template <>
struct Vnni<Q4_1> : VnniNibbles<Q4_1, 4> {
  static constexpr float kOffset = 0;
  static Scales scales(const uint8_t* p, int count) {
    const Halves h = gather_halves<20>(p, count);
    return {h.first, h.second};
  }
  static __m512i quants(const uint8_t* p, int unit, bool second) { return pair(p, unit, second); }
};

template <>
struct Vnni<Q5_0> : VnniNibbles<Q5_0, 6> {
  static constexpr float kOffset = 16;
  static Scales scales(const uint8_t* p, int count) {
    return {gather_halves<22>(p, count).first, _mm512_setzero_ps()};
  }
  static __m512i quants(const uint8_t* p, int unit, bool second) {
    return with_fifth_bits(pair(p, unit, second), p, unit, second);
  }
};

template <>
struct Vnni<Q5_1> : VnniNibbles<Q5_1, 8> {
  static constexpr float kOffset = 0;
  static Scales scales(const uint8_t* p, int count) {
    const Halves h = gather_halves<24>(p, count);
    return {h.first, h.second};
  }
  static __m512i quants(const uint8_t* p, int unit, bool second) {
    return with_fifth_bits(pair(p, unit, second), p, unit, second);
  }
};

template <>
struct Vnni<Q8_0> {
  static constexpr int kStripe = 512;
  static constexpr float kOffset = 128;
  static Scales scales(const uint8_t* p, int count) {
    return {gather_halves<34>(p, count).first, _mm512_setzero_ps()};
  }
  static __m512i quants(const uint8_t* p, int unit, bool second) {
    const uint8_t* a = p + 2 * unit * 34 + 2;
    const __m512i bytes =
        _mm512_inserti64x4(_mm512_castsi256_si512(load256(a)), load256(second ? a + 34 : a), 1);
    return _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
};

// 6-bit scales and minimums of one or two blocks of 256.
inline Scales scales6(const uint8_t* p, int stride, int count) {
  uint64_t scales[2] = {}, minimums[2] = {};
  __m512 d = _mm512_setzero_ps(), m = _mm512_setzero_ps();
  for (int b = 0; b < count; ++b, p += stride) {
    unpack_scales6(p + 4, &scales[b], &minimums[b]);
    const __m128 halves = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(load_u32(p))));
    const __mmask16 half = b == 0 ? 0x00FF : 0xFF00;
    d = _mm512_mask_broadcastss_ps(d, half, halves);
    m = _mm512_mask_broadcastss_ps(m, half, _mm_movehdup_ps(halves));
  }
  const auto widen8 = [](const uint64_t(&bytes)[2]) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_set_epi64x(static_cast<int64_t>(bytes[1]), static_cast<int64_t>(bytes[0]))));
  };
  return {d * widen8(scales), -(m * widen8(minimums))};
}

template <>
struct Vnni<Q4_K> {
  static constexpr int kStripe = 512;
  static constexpr float kOffset = 0;
  static Scales scales(const uint8_t* p, int count) { return scales6(p, Q4_K::kBytes, count); }
  static __m512i quants(const uint8_t* p, int unit, bool) {
    const uint8_t* low = p + unit / 4 * Q4_K::kBytes + 16 + unit % 4 * 32;
    return nibbles(_mm512_broadcast_i64x4(load256(low)), counts_by_half(0, 4));
  }
};

template <>
struct Vnni<Q5_K> {
  static constexpr int kStripe = 512;
  static constexpr float kOffset = 0;
  static Scales scales(const uint8_t* p, int count) { return scales6(p, Q5_K::kBytes, count); }
  static __m512i quants(const uint8_t* p, int unit, bool) {
    const uint8_t* block = p + unit / 4 * Q5_K::kBytes;
    const int j = unit % 4;
    const __m512i low = nibbles(_mm512_broadcast_i64x4(load256(block + 48 + j * 32)), counts_by_half(0, 4));
    const __m512i bit = _mm512_mask_blend_epi64(0xF0, _mm512_set1_epi8(static_cast<char>(1 << (2 * j))),
                                                _mm512_set1_epi8(static_cast<char>(2 << (2 * j))));
    const __mmask64 high = _mm512_test_epi8_mask(_mm512_broadcast_i64x4(load256(block + 16)), bit);
    return _mm512_mask_add_epi8(low, high, low, _mm512_set1_epi8(16));
  }
};

template <>
struct Vnni<Q6_K> {
  static constexpr int kStripe = 256;
  static constexpr float kOffset = 32;
  static Scales scales(const uint8_t* p, int) {
    const __m512 scale = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(p + 192)));
    return {scale * _mm512_set1_ps(load_half(p + 208)), _mm512_setzero_ps()};
  }
  static __m512i quants(const uint8_t* p, int unit, bool) {
    const int half = unit / 2, upper = unit % 2;
    const __m512i low = nibbles(_mm512_loadu_si512(p + 64 * half), counts_by_half(4 * upper, 4 * upper));
    const __m512i pairs = _mm512_broadcast_i64x4(load256(p + 128 + 32 * half));
    const __m512i high = _mm512_and_si512(_mm512_srlv_epi16(pairs, counts_by_half(4 * upper, 4 * upper + 2)),
                                          _mm512_set1_epi8(3));
    return _mm512_or_si512(low, _mm512_slli_epi16(high, 4));
  }
};

// Lane l of the result is the group that lane l of a dot product of 64 columns at `unit` belongs to.
template <class Format>
__m512i group_of_lane(int unit) {
  constexpr int kShift = Format::kGroup == 32 ? 3 : 2;
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_add_epi32(_mm512_srli_epi32(lane, kShift), _mm512_set1_epi32(unit * 64 / Format::kGroup));
}

// Of one token and one stripe: the scale of each group, and d times the sum of its quants.
struct StripeActivations {
  __m512 d, sum;
};
template <class Format>
StripeActivations stripe_activations(const Int8Layout& layout, const std::byte* token, int64_t k) {
  if constexpr (Format::kGroup == 32) {
    return {_mm512_loadu_ps(layout.d(token) + k / 32), _mm512_loadu_ps(layout.sum32(token) + k / 32)};
  } else {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512 d = _mm512_castps256_ps512(_mm256_loadu_ps(layout.d(token) + k / 32));
    return {_mm512_permutexvar_ps(twice, d), _mm512_loadu_ps(layout.sum16(token) + k / 16)};
  }
}

template <class Format, int tokens>
struct RowSums {
  using V = Vnni<Format>;
  static constexpr int kUnits = V::kStripe / 64;

  __m512 dots[tokens] = {}, rests[tokens] = {};

  // count: blocks of the stripe that exist. `whole` stripes have all their units.
  template <bool whole>
  void add_stripe(const Int8Layout& layout, const uint8_t* p, const std::byte* x, int64_t k, int count) {
    const Scales w = V::scales(p, count);
    __m512 scale[tokens];
    for (int t = 0; t < tokens; ++t) {
      const StripeActivations a = stripe_activations<Format>(layout, x + t * layout.token_bytes(), k);
      scale[t] = w.d * a.d;
      rests[t] = _mm512_fmadd_ps(Format::kMin ? w.m : w.d, a.sum, rests[t]);
    }
    const int64_t columns = count * int64_t{Format::kBlock};
    const int units = whole ? kUnits : static_cast<int>((columns + 63) / 64);
#pragma GCC unroll 8
    for (int u = 0; u < kUnits; ++u) {
      if (!whole && u >= units) break;
      const __m512i quants = V::quants(p, u, whole || 64 * u + 32 < columns);
      const __m512i group = group_of_lane<Format>(u);
      for (int t = 0; t < tokens; ++t) {
        const __m512i q = _mm512_loadu_si512(Int8Layout::q(x + t * layout.token_bytes()) + k + 64 * u);
        const __m512i dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), quants, q);
        dots[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_permutexvar_ps(group, scale[t]), dots[t]);
      }
    }
  }

  float sum(int t) const {
    if (Format::kMin) return Simd::sum(dots[t] + rests[t]);
    return Simd::sum(_mm512_fnmadd_ps(rests[t], _mm512_set1_ps(V::kOffset), dots[t]));
  }
};

// Weights this far on are asked for ahead of their use: hardware prefetchers stop at page ends.
constexpr int64_t kAheadBytes = 4096;

template <class Format, int tokens>
void rows_by_tokens(const RowJob& job, int64_t first) {
  constexpr int kStripe = Vnni<Format>::kStripe;
  constexpr int kStripeBlocks = kStripe / Format::kBlock, kStripeBytes = kStripeBlocks * Format::kBytes;
  const Int8Layout layout(job.x.cols);
  const std::byte* x =
      static_cast<const std::byte*>(job.prepared) + (job.first_token + first) * layout.token_bytes();
  const int64_t whole = job.x.cols / kStripe * kStripe;
  const int rest = static_cast<int>((job.x.cols - whole) / Format::kBlock);
  for (int64_t r = 0; r < job.rows; ++r) {
    const auto* p = reinterpret_cast<const uint8_t*>(job.w + r * job.w_stride);
    RowSums<Format, tokens> sums;
    for (int64_t k = 0; k < whole; k += kStripe, p += kStripeBytes) {
      if (tokens == 1) {
        for (int line = 0; line < kStripeBytes; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(p + kAheadBytes + line), _MM_HINT_T0);
        }
      }
      sums.template add_stripe<true>(layout, p, x, k, kStripeBlocks);
    }
    if (rest > 0) sums.template add_stripe<false>(layout, p, x, whole, rest);
    for (int t = 0; t < tokens; ++t) job.out[(first + t) * job.out_stride + r] = sums.sum(t);
  }
}

void int8_rows(const RowJob& job) {
  with_format(job.type, [&]<class Format>() {
    int64_t t = 0;
    for (; t + 4 <= job.tokens; t += 4) rows_by_tokens<Format, 4>(job, t);
    if (t + 2 <= job.tokens) {
      rows_by_tokens<Format, 2>(job, t);
      t += 2;
    }
    if (t < job.tokens) rows_by_tokens<Format, 1>(job, t);
  });
}

}  // namespace

const RowKernel kRowsInt8Avx512 = {int8_prepared_bytes, int8_prepare, nullptr, int8_rows, silu_mul, 16};

}  // namespace atom::ops
#endif
