// Float vectors of AVX2, for kernels written once and compiled per instruction set. Only for files whose name
// ends in _avx2; everything has internal linkage, so no copy leaks into another file.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

struct Simd {
  static constexpr int kLanes = 8;
  using Reg = __m256;

  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg set1(float x) { return _mm256_set1_ps(x); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Reg x) { _mm256_storeu_ps(p, x); }
  // The first n lanes, n in [0, kLanes]; other lanes are zero and their memory is not touched.
  static Reg load_n(const float* p, int64_t n) { return _mm256_maskload_ps(p, mask(n)); }
  static void store_n(float* p, Reg x, int64_t n) { _mm256_maskstore_ps(p, mask(n), x); }

  static Reg load_bf16(const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Reg load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // E4M3 times kF8Unit: the bits of f16 with another bias, so that subnormals cost nothing.
  static constexpr float kF8Unit = 0x1p-8f;
  static Reg load_f8e4m3(const uint8_t* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m128i bits = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7), _mm_set1_epi16(-0x4080));
    // NaN, all ones below the sign, is the one that carries into the exponent's highest bit.
    const __m128i carry = _mm_and_si128(_mm_add_epi16(bits, _mm_set1_epi16(0x80)), _mm_set1_epi16(0x4000));
    return _mm256_cvtph_ps(_mm_or_si128(bits, carry));
  }
  // 8 values of E2M1 from 4 bytes, low four bits first.
  static Reg load_f4e2m1(const uint8_t* p) {
    int word;
    __builtin_memcpy(&word, p, 4);
    const __m256i twice = _mm256_shuffle_epi8(
        _mm256_set1_epi32(word),
        _mm256_setr_epi32(kZ | 0, kZ | 0, kZ | 1, kZ | 1, kZ | 2, kZ | 2, kZ | 3, kZ | 3));
    const __m256i codes = _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(8)), 28);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, codes),  // reads the low three bits
                         _mm256_castsi256_ps(sign));
  }
  // Round to nearest even by integer arithmetic; NaN stays NaN.
  static void store_bf16(uint16_t* p, Reg x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  static void store_f16(uint16_t* p, Reg x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }  // a * b + c
  static Reg fms(Reg a, Reg b, Reg c) { return _mm256_fmsub_ps(a, b, c); }  // a * b - c
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }              // b if either is NaN

  static float sum(Reg x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float max_lane(Reg x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  // 2^x within an ulp; below -126 it is 0. x is at most 127.
  static Reg exp2(Reg x) {
    const Reg tiny = _mm256_cmp_ps(x, set1(-126.0f), _CMP_LT_OQ);
    x = _mm256_max_ps(set1(-126.0f), x);
    const Reg whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Reg f = _mm256_sub_ps(x, whole);
    Reg y = set1(1.54614447e-4f);
    y = fma(y, f, set1(1.34004282e-3f));
    y = fma(y, f, set1(9.61805668e-3f));
    y = fma(y, f, set1(5.55032723e-2f));
    y = fma(y, f, set1(2.40226509e-1f));
    y = fma(y, f, set1(6.93147207e-1f));
    y = fma(y, f, set1(1.0f));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    y = mul(y, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
    return _mm256_andnot_ps(tiny, y);
  }

  // Pairs (2i, 2i + 1): the first kLanes / 2 values of p, each twice; the two of each pair swapped; and
  // (a0*b0 - c0, a1*b1 + c1, ...).
  static Reg load_twice(const float* p) {
    const __m256i index = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), index);
  }
  static Reg swap_pairs(Reg x) { return _mm256_permute_ps(x, 0xB1); }
  static Reg fma_sub_add(Reg a, Reg b, Reg c) { return _mm256_fmaddsub_ps(a, b, c); }

  // Lane i of the result is the sum of the lanes of x[i].
  static Reg sums(const Reg (&x)[kLanes]) {
    const Reg a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const Reg b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }

 private:
  static constexpr int kZ = static_cast<int>(0x80808000);  // a byte, then zeros
  static __m256i mask(int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
  }
};

}  // namespace
