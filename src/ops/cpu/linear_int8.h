// Activations in 8-bit blocks: x = d * q with one d per 32 columns, as products with GGUF weights take them.
// One layout for every instruction set; internal linkage, so each file has its own copy of the code. Needs
// AVX2.
#pragma once
#include <immintrin.h>

#include "ops/cpu/dequant_blocks.h"
#include "ops/cpu/linear_kernel.h"

namespace atom::ops {
namespace {

constexpr int kInt8Slice = 512;  // columns are padded with zeros to a multiple of this

// Of one token: q[padded], d[padded / 32], sum32[padded / 32], sum16[padded / 16]; sumN is d times the sum of
// N quants.
struct Int8Layout {
  explicit Int8Layout(int64_t cols) : padded((cols + kInt8Slice - 1) / kInt8Slice * kInt8Slice) {}
  int64_t padded;
  int64_t token_bytes() const { return padded + padded / 32 * 8 + padded / 16 * 4; }
  static const int8_t* q(const std::byte* token) { return reinterpret_cast<const int8_t*>(token); }
  const float* d(const std::byte* token) const { return reinterpret_cast<const float*>(token + padded); }
  const float* sum32(const std::byte* token) const { return d(token) + padded / 32; }
  const float* sum16(const std::byte* token) const { return d(token) + padded / 16; }
};

inline int64_t int8_prepared_bytes(int64_t tokens, int64_t cols) {
  return (tokens + kTokenTile - 1) / kTokenTile * kTokenTile * Int8Layout(cols).token_bytes();
}

// q = round(x * (127 / largest)) of 32 columns, ties to even.
inline void round_block(const float* x, int8_t* q, float* d, float* sum32, float* sum16) {
  __m256 v[4];
  for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 8 * i);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 most =
      _mm256_max_ps(_mm256_max_ps(_mm256_andnot_ps(sign, v[0]), _mm256_andnot_ps(sign, v[1])),
                    _mm256_max_ps(_mm256_andnot_ps(sign, v[2]), _mm256_andnot_ps(sign, v[3])));
  __m128 top = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
  top = _mm_max_ps(top, _mm_movehl_ps(top, top));
  const float largest = _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
  const __m256 inverse = _mm256_set1_ps(largest > 0 ? 127 / largest : 0);
  __m256i n[4];
  for (int i = 0; i < 4; ++i) n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(bytes, order));
  __m256i sums = _mm256_hadd_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3]));
  sums = _mm256_hadd_epi32(sums, sums);
  const __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  const int first = _mm_cvtsi128_si32(both), second = _mm_extract_epi32(both, 1);
  *d = largest / 127;
  sum16[0] = *d * static_cast<float>(first);
  sum16[1] = *d * static_cast<float>(second);
  *sum32 = *d * static_cast<float>(first + second);
}

inline void int8_prepare(const Activations& x, int64_t begin, int64_t end, void* prepared) {
  const Int8Layout layout(x.cols);
  for (int64_t t = begin; t < end; ++t) {
    const float* row = x.data + t * x.stride;
    std::byte* token = static_cast<std::byte*>(prepared) + t * layout.token_bytes();
    auto* q = reinterpret_cast<int8_t*>(token);
    auto* d = reinterpret_cast<float*>(token + layout.padded);
    float *sum32 = d + layout.padded / 32, *sum16 = d + layout.padded / 16;
    std::memset(token + x.cols, 0, static_cast<size_t>(layout.token_bytes() - x.cols));
    for (int64_t b = 0; b < x.cols / 32; ++b) {
      round_block(row + 32 * b, q + 32 * b, d + b, sum32 + b, sum16 + 2 * b);
    }
  }
}

// Calls fn.template operator()<Format>() for a block type.
template <class Fn>
void with_format(DType type, Fn&& fn) {
  switch (type) {
    case DType::q4_0:
      return fn.template operator()<Q4_0>();
    case DType::q4_1:
      return fn.template operator()<Q4_1>();
    case DType::q5_0:
      return fn.template operator()<Q5_0>();
    case DType::q5_1:
      return fn.template operator()<Q5_1>();
    case DType::q8_0:
      return fn.template operator()<Q8_0>();
    case DType::q4_k:
      return fn.template operator()<Q4_K>();
    case DType::q5_k:
      return fn.template operator()<Q5_K>();
    case DType::q6_k:
      return fn.template operator()<Q6_K>();
    default:
      return;  // the op refuses other types
  }
}

}  // namespace
}  // namespace atom::ops
