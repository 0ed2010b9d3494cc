// Float vectors of AVX-512, for kernels written once and compiled per instruction set. Only for files whose
// name ends in _avx512 or _amx; everything has internal linkage, so no copy leaks into another file.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12 warns of the registers that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstdint>

namespace {

struct Simd {
  static constexpr int kLanes = 16;
  using Reg = __m512;

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set1(float x) { return _mm512_set1_ps(x); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  // The first n lanes, n in [0, kLanes]; other lanes are zero and their memory is not touched.
  static Reg load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static void store_n(float* p, Reg x, int64_t n) { _mm512_mask_storeu_ps(p, mask(n), x); }

  static Reg load_bf16(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Reg load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // E4M3 times kF8Unit: the bits of f16 with another bias, so that subnormals cost nothing.
  static constexpr float kF8Unit = 0x1p-8f;
  static Reg load_f8e4m3(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i bits =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7), _mm256_set1_epi16(-0x4080));
    // NaN, all ones below the sign, is the one that carries into the exponent's highest bit.
    const __m256i carry = _mm256_add_epi16(bits, _mm256_set1_epi16(0x80));
    return _mm512_cvtph_ps(_mm256_ternarylogic_epi32(bits, carry, _mm256_set1_epi16(0x4000), 0xF8));
  }
  // 16 values of E2M1 from 8 bytes, low four bits first.
  static Reg load_f4e2m1(const uint8_t* p) {
    const __m512 values =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512i bytes = _mm512_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m512i twice = _mm512_shuffle_epi8(
        bytes, _mm512_setr_epi32(kZ | 0, kZ | 0, kZ | 1, kZ | 1, kZ | 2, kZ | 2, kZ | 3, kZ | 3, kZ | 4,
                                 kZ | 4, kZ | 5, kZ | 5, kZ | 6, kZ | 6, kZ | 7, kZ | 7));
    const __m512i shift = _mm512_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(twice, shift), values);  // reads the low four bits
  }
  static void store_bf16(uint16_t* p, Reg x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x));
  }
  static void store_f16(uint16_t* p, Reg x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  // Round to nearest even by integer arithmetic: the bf16 instruction would flush subnormals.
  static __m256i to_bf16(Reg x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }

  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
  static Reg fms(Reg a, Reg b, Reg c) { return _mm512_fmsub_ps(a, b, c); }  // a * b - c
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }              // b if either is NaN

  static float sum(Reg x) { return _mm512_reduce_add_ps(x); }
  static float max_lane(Reg x) { return _mm512_reduce_max_ps(x); }

  // 2^x within an ulp; below about -150 it is 0.
  static Reg exp2(Reg x) {
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
    const Reg whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Reg f = _mm512_sub_ps(x, whole);
    Reg y = set1(1.54614447e-4f);
    y = fma(y, f, set1(1.34004282e-3f));
    y = fma(y, f, set1(9.61805668e-3f));
    y = fma(y, f, set1(5.55032723e-2f));
    y = fma(y, f, set1(2.40226509e-1f));
    y = fma(y, f, set1(6.93147207e-1f));
    y = fma(y, f, set1(1.0f));
    return _mm512_scalef_ps(y, whole);
  }

  // Pairs (2i, 2i + 1): the first kLanes / 2 values of p, each twice; the two of each pair swapped; and
  // (a0*b0 - c0, a1*b1 + c1, ...).
  static Reg load_twice(const float* p) {
    const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
  }
  static Reg swap_pairs(Reg x) { return _mm512_permute_ps(x, 0xB1); }
  static Reg fma_sub_add(Reg a, Reg b, Reg c) { return _mm512_fmaddsub_ps(a, b, c); }

  // Lane i of the result is the sum of the lanes of x[i].
  static Reg sums(const Reg (&x)[kLanes]) {
    Reg a[8];
    for (int i = 0; i < 8; ++i) {  // a[i]: pairs of lanes, x[2i] and x[2i+1] alternating
      a[i] = add(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    }
    Reg b[4];
    for (int i = 0; i < 4; ++i) {  // b[i]: in each 128 bits, x[4i..4i+3]
      const __m512d lo = _mm512_castps_pd(a[2 * i]), hi = _mm512_castps_pd(a[2 * i + 1]);
      b[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi)), _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi)));
    }
    const Reg c = add(_mm512_shuffle_f32x4(b[0], b[1], 0x88), _mm512_shuffle_f32x4(b[0], b[1], 0xDD));
    const Reg d = add(_mm512_shuffle_f32x4(b[2], b[3], 0x88), _mm512_shuffle_f32x4(b[2], b[3], 0xDD));
    return add(_mm512_shuffle_f32x4(c, d, 0x88), _mm512_shuffle_f32x4(c, d, 0xDD));
  }

 private:
  static constexpr int kZ = static_cast<int>(0x80808000);  // a byte, then zeros
  static __mmask16 mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
};

}  // namespace
