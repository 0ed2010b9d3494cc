// Products with float32 activations and sums, for weights of every type; compiled per instruction set after
// the file that defines Simd.
//
// Every output is computed in one order whatever the number of tokens or rows around it: columns are cut into
// slices of 512; inside a slice lane l sums columns l, l + lanes, ... with fused multiply-adds; the lanes are
// added by lane_sums; slices are added from left to right. So a row's result has the same bits alone and in
// any batch.
#pragma once
#include <cstring>

#include "ops/cpu/dequant_blocks.h"
#include "ops/cpu/linear_kernel.h"

namespace atom::ops {
namespace {

using Reg = Simd::Reg;
constexpr int kLanes = Simd::kLanes;
constexpr int kSlice = 512;
constexpr int kQuad = 4;                 // weight rows of one register block
constexpr int kTokens = kLanes / kQuad;  // tokens of one register block
constexpr int kTileRows = 8;             // widened rows that stay in L1: 16 KiB
constexpr int kStreamedSlices = 64;      // of one row, at most, in the path for one token
constexpr int kDirectTokens = 4;         // up to here plain weights are widened in registers

// Lane r of the result is the sum of the lanes of x[r].
inline __m128 lane_sums(const Reg (&x)[kQuad]) {
#ifdef __AVX512F__
  const __m512 a = _mm512_unpacklo_ps(x[0], x[1]) + _mm512_unpackhi_ps(x[0], x[1]);
  const __m512 b = _mm512_unpacklo_ps(x[2], x[3]) + _mm512_unpackhi_ps(x[2], x[3]);
  const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
  const __m512 s = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d)) + _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
  const __m256 half = _mm512_castps512_ps256(s) + _mm512_castps512_ps256(_mm512_shuffle_f32x4(s, s, 0xEE));
#else
  const __m256 half = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
#endif
  return _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
}

// How a column position of a stored row becomes lanes of float32.
struct F32 {
  static constexpr int kBytes = 4;
  static Reg load(const std::byte* p) { return Simd::load(reinterpret_cast<const float*>(p)); }
};
struct Bf16 {
  static constexpr int kBytes = 2;
  static Reg load(const std::byte* p) { return Simd::load_bf16(reinterpret_cast<const uint16_t*>(p)); }
};
struct F16 {
  static constexpr int kBytes = 2;
  static Reg load(const std::byte* p) { return Simd::load_f16(reinterpret_cast<const uint16_t*>(p)); }
};

template <class Type>
Reg load_tail(const std::byte* p, int64_t n) {
  alignas(64) std::byte lanes[kLanes * Type::kBytes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * Type::kBytes);
  return Type::load(lanes);
}

// Types with scales beside them: loaded in units of kUnit, whose reciprocal goes into the factor of a block.
struct F8 {
  static constexpr int kBlock = 1;
  static constexpr float kUnit = Simd::kF8Unit;
  static Reg load(const std::byte* p) { return Simd::load_f8e4m3(reinterpret_cast<const uint8_t*>(p)); }
  static float scale(const std::byte* scales, int64_t block) {
    float value;
    std::memcpy(&value, scales + 4 * block, 4);
    return value;
  }
};
struct F4 {
  static constexpr int kBlock = 2;
  static constexpr float kUnit = 1;
  static Reg load(const std::byte* p) { return Simd::load_f4e2m1(reinterpret_cast<const uint8_t*>(p)); }
  static float scale(const std::byte* scales, int64_t block) {
    const auto exponent = static_cast<uint32_t>(scales[block]);
    const uint32_t bits = exponent == 0xFF ? 0x7FC00000 : exponent == 0 ? 0x00400000 : exponent << 23;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
};

template <class Type>
Reg load_scaled(const std::byte* p, int64_t n) {
  if (n >= kLanes) return Type::load(p);
  alignas(64) std::byte lanes[kLanes / Type::kBlock] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n / Type::kBlock));
  return Type::load(lanes);
}

// Calls fn(begin, end, factor) for the runs of columns [begin, end) of [k, k + n) of row r that share a
// scale.
template <class Type, class Fn>
void for_scales(const RowJob& job, int64_t r, int64_t k, int64_t n, const Fn& fn) {
  const RowScales& s = job.scales;
  const std::byte* scales = s.data + (s.block_rows == 1 ? r : (r + s.first_row) / s.block_rows) * s.stride;
  int64_t block = (k + s.first_col) / s.block_cols;
  for (int64_t begin = k; begin < k + n; ++block) {
    const int64_t block_end = (block + 1) * s.block_cols - s.first_col;
    const int64_t end = block_end < k + n ? block_end : k + n;
    fn(begin, end, Type::scale(scales, block) * (1 / Type::kUnit));
    begin = end;
  }
}

// True if no vector of columns, counted from the row's first, meets two scales.
inline bool scales_on_lanes(const RowScales& s) { return s.block_cols % 16 == 0 && s.first_col % 16 == 0; }

// sums[t] lane r: weight row w[r] times the token at x + t * x_stride over n columns of one slice.
template <class Type, int tokens>
void dot_quad(const std::byte* const (&w)[kQuad], const float* x, int64_t x_stride, int64_t n,
              __m128 (&sums)[tokens]) {
  Reg acc[tokens][kQuad];
  for (auto& row : acc) {
    for (Reg& a : row) a = Simd::zero();
  }
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    Reg v[kQuad];
    for (int r = 0; r < kQuad; ++r) v[r] = Type::load(w[r] + k * Type::kBytes);
    for (int t = 0; t < tokens; ++t) {
      const Reg xt = Simd::load(x + t * x_stride + k);
      for (int r = 0; r < kQuad; ++r) acc[t][r] = Simd::fma(v[r], xt, acc[t][r]);
    }
  }
  if (k < n) {
    Reg v[kQuad];
    for (int r = 0; r < kQuad; ++r) v[r] = load_tail<Type>(w[r] + k * Type::kBytes, n - k);
    for (int t = 0; t < tokens; ++t) {
      const Reg xt = Simd::load_n(x + t * x_stride + k, n - k);
      for (int r = 0; r < kQuad; ++r) acc[t][r] = Simd::fma(v[r], xt, acc[t][r]);
    }
  }
  for (int t = 0; t < tokens; ++t) sums[t] = lane_sums(acc[t]);
}

// Adds a quad's sums to `rows` outputs, or starts them.
inline void accumulate(float* out, __m128 sums, int rows, bool first) {
  if (rows == kQuad) {
    _mm_storeu_ps(out, first ? sums : _mm_loadu_ps(out) + sums);
    return;
  }
  float lanes[kQuad];
  _mm_storeu_ps(lanes, sums);
  for (int r = 0; r < rows; ++r) out[r] = first ? lanes[r] : out[r] + lanes[r];
}

template <class Type, int tokens>
void quad_tokens(const std::byte* const (&w)[kQuad], int rows, const float* x, int64_t x_stride, int64_t n,
                 bool first, float* out, int64_t out_stride) {
  __m128 sums[tokens];
  dot_quad<Type, tokens>(w, x, x_stride, n, sums);
  for (int t = 0; t < tokens; ++t) accumulate(out + t * out_stride, sums[t], rows, first);
}

// All tokens of the job for up to four rows and one slice.
template <class Type>
void quad(const RowJob& job, const std::byte* w0, int64_t w_stride, int rows, int64_t k, int64_t n,
          float* out) {
  const std::byte* w[kQuad];
  for (int r = 0; r < kQuad; ++r) w[r] = w0 + (r < rows ? r : 0) * w_stride;
  const float* x = job.x.data + job.first_token * job.x.stride + k;
  const int64_t xs = job.x.stride, os = job.out_stride;
  const bool first = k == 0;
  int64_t t = 0;
  for (; t + kTokens <= job.tokens; t += kTokens) {
    quad_tokens<Type, kTokens>(w, rows, x + t * xs, xs, n, first, out + t * os, os);
  }
  if (kTokens > 2 && t + 2 <= job.tokens) {
    quad_tokens<Type, 2>(w, rows, x + t * xs, xs, n, first, out + t * os, os);
    t += 2;
  }
  if (t < job.tokens) quad_tokens<Type, 1>(w, rows, x + t * xs, xs, n, first, out + t * os, os);
}

// One token: rows are read one after the other from end to end, the order that memory delivers fastest, and
// the lanes of every slice are kept until four rows can be summed at once, in the order of all other paths.
template <class Type>
void rows_streamed(const RowJob& job) {
  constexpr int64_t kAheadBytes = 2048;  // hardware prefetchers stop at page ends
  const float* x = job.x.data + job.first_token * job.x.stride;
  const int64_t cols = job.x.cols;
  Reg acc[kStreamedSlices][kQuad];
  for (int64_t r0 = 0; r0 < job.rows; r0 += kQuad) {
    const int rows = static_cast<int>(job.rows - r0 < kQuad ? job.rows - r0 : kQuad);
    for (int r = 0; r < kQuad; ++r) {
      const std::byte* w = job.w + (r0 + (r < rows ? r : 0)) * job.w_stride;
      for (int64_t k0 = 0, s = 0; k0 < cols; k0 += kSlice, ++s) {
        const int64_t end = cols - k0 < kSlice ? cols : k0 + kSlice;
        Reg a = Simd::zero();
        int64_t k = k0;
        for (; k + kLanes <= end; k += kLanes) {
          _mm_prefetch(reinterpret_cast<const char*>(w + k * Type::kBytes + kAheadBytes), _MM_HINT_T0);
          a = Simd::fma(Type::load(w + k * Type::kBytes), Simd::load(x + k), a);
        }
        if (k < end)
          a = Simd::fma(load_tail<Type>(w + k * Type::kBytes, end - k), Simd::load_n(x + k, end - k), a);
        acc[s][r] = a;
      }
    }
    for (int64_t k0 = 0, s = 0; k0 < cols; k0 += kSlice, ++s) {
      accumulate(job.out + r0, lane_sums(acc[s]), rows, s == 0);
    }
  }
}

// One token by weights with scales: every weight becomes the float32 that the other paths multiply with.
template <class Type>
void scaled_rows_streamed(const RowJob& job) {
  constexpr int64_t kAheadBytes = 1024;
  const float* x = job.x.data + job.first_token * job.x.stride;
  const int64_t cols = job.x.cols;
  Reg acc[kStreamedSlices][kQuad];
  for (int64_t r0 = 0; r0 < job.rows; r0 += kQuad) {
    const int rows = static_cast<int>(job.rows - r0 < kQuad ? job.rows - r0 : kQuad);
    for (int r = 0; r < kQuad; ++r) {
      const int64_t row = r0 + (r < rows ? r : 0);
      const std::byte* w = job.w + row * job.w_stride;
      for (int64_t k0 = 0, s = 0; k0 < cols; k0 += kSlice, ++s) {
        Reg a = Simd::zero();
        for_scales<Type>(job, row, k0, cols - k0 < kSlice ? cols - k0 : kSlice,
                         [&](int64_t begin, int64_t end, float factor) {
                           const Reg scale = Simd::set1(factor);
                           int64_t k = begin;
                           for (; k + kLanes <= end; k += kLanes) {
                             const std::byte* p = w + k / Type::kBlock;
                             _mm_prefetch(reinterpret_cast<const char*>(p + kAheadBytes), _MM_HINT_T0);
                             a = Simd::fma(Simd::mul(Type::load(p), scale), Simd::load(x + k), a);
                           }
                           if (k == end) return;
                           const Reg v = Simd::mul(load_scaled<Type>(w + k / Type::kBlock, end - k), scale);
                           a = Simd::fma(v, Simd::load_n(x + k, end - k), a);
                         });
        acc[s][r] = a;
      }
    }
    for (int64_t k0 = 0, s = 0; k0 < cols; k0 += kSlice, ++s) {
      accumulate(job.out + r0, lane_sums(acc[s]), rows, s == 0);
    }
  }
}

// Few tokens: each weight is read once and widened in registers.
template <class Type>
void rows_direct(const RowJob& job) {
  for (int64_t r = 0; r < job.rows; r += kQuad) {
    const int rows = static_cast<int>(job.rows - r < kQuad ? job.rows - r : kQuad);
    for (int64_t k = 0; k < job.x.cols; k += kSlice) {
      const int64_t n = job.x.cols - k < kSlice ? job.x.cols - k : kSlice;
      quad<Type>(job, job.w + r * job.w_stride + k * Type::kBytes, job.w_stride, rows, k, n, job.out + r);
    }
  }
}

template <class Type>
void widen_plain(const std::byte* src, float* dst, int64_t n) {
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) Simd::store(dst + k, Type::load(src + k * Type::kBytes));
  if (k < n) Simd::store_n(dst + k, load_tail<Type>(src + k * Type::kBytes, n - k), n - k);
}

template <class Format>
void widen_blocks(const std::byte* row, float* dst, int64_t k, int64_t n) {
  const auto* src = reinterpret_cast<const uint8_t*>(row) + k / Format::kBlock * Format::kBytes;
  dequantize_blocks<Format>(src, dst, n);
}

// Values first, then scales: runs that share one may be of any length.
template <class Type>
void widen_scaled(const RowJob& job, int64_t r, int64_t k, int64_t n, float* dst) {
  const std::byte* row = job.w + r * job.w_stride;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i < kLanes ? n - i : kLanes;
    Simd::store_n(dst + i, load_scaled<Type>(row + (k + i) / Type::kBlock, rest), rest);
  }
  for_scales<Type>(job, r, k, n, [&](int64_t begin, int64_t end, float factor) {
    const Reg scale = Simd::set1(factor);
    for (int64_t i = begin - k; i < end - k; i += kLanes) {
      const int64_t rest = end - k - i < kLanes ? end - k - i : kLanes;
      Simd::store_n(dst + i, Simd::mul(Simd::load_n(dst + i, rest), scale), rest);
    }
  });
}

// Columns [k, k + n) of row r, k on a block.
inline void widen(const RowJob& job, int64_t r, int64_t k, int64_t n, float* dst) {
  const std::byte* row = job.w + r * job.w_stride;
  switch (job.type) {
    case DType::f8e4m3:
      return widen_scaled<F8>(job, r, k, n, dst);
    case DType::f4e2m1x2:
      return widen_scaled<F4>(job, r, k, n, dst);
    case DType::bf16:
      return widen_plain<Bf16>(row + k * 2, dst, n);
    case DType::f16:
      return widen_plain<F16>(row + k * 2, dst, n);
    case DType::q4_0:
      return widen_blocks<Q4_0>(row, dst, k, n);
    case DType::q4_1:
      return widen_blocks<Q4_1>(row, dst, k, n);
    case DType::q5_0:
      return widen_blocks<Q5_0>(row, dst, k, n);
    case DType::q5_1:
      return widen_blocks<Q5_1>(row, dst, k, n);
    case DType::q8_0:
      return widen_blocks<Q8_0>(row, dst, k, n);
    case DType::q4_k:
      return widen_blocks<Q4_K>(row, dst, k, n);
    case DType::q5_k:
      return widen_blocks<Q5_K>(row, dst, k, n);
    case DType::q6_k:
      return widen_blocks<Q6_K>(row, dst, k, n);
    default:
      return widen_plain<F32>(row + k * 4, dst, n);
  }
}

inline void widen_rows(const RowJob& job, float* out) {
  for (int64_t r = 0; r < job.rows; ++r) widen(job, r, 0, job.x.cols, out + r * job.x.cols);
}

// Many tokens: a tile of rows is widened into L1 and meets all of them.
inline void rows_tiled(const RowJob& job) {
  alignas(64) float tile[kTileRows][kSlice];
  for (int64_t k = 0; k < job.x.cols; k += kSlice) {
    const int64_t n = job.x.cols - k < kSlice ? job.x.cols - k : kSlice;
    for (int64_t r0 = 0; r0 < job.rows; r0 += kTileRows) {
      const int64_t rows = job.rows - r0 < kTileRows ? job.rows - r0 : kTileRows;
      for (int64_t r = 0; r < rows; ++r) widen(job, r0 + r, k, n, tile[r]);
      for (int64_t t = 0; t < job.tokens; t += kTokens) {
        RowJob part = job;
        part.first_token += t;
        part.tokens = job.tokens - t < kTokens ? job.tokens - t : kTokens;
        for (int64_t r = 0; r < rows; r += kQuad) {
          const int in_quad = static_cast<int>(rows - r < kQuad ? rows - r : kQuad);
          quad<F32>(part, reinterpret_cast<const std::byte*>(tile[r]), kSlice * 4, in_quad, k, n,
                    job.out + t * job.out_stride + r0 + r);
        }
      }
    }
  }
}

inline void float_rows(const RowJob& job) {
  if (job.tokens == 1 && job.x.cols <= kStreamedSlices * kSlice) {
    if (job.type == DType::f32) return rows_streamed<F32>(job);
    if (job.type == DType::bf16) return rows_streamed<Bf16>(job);
    if (job.type == DType::f16) return rows_streamed<F16>(job);
    if (job.type == DType::f8e4m3 && scales_on_lanes(job.scales)) return scaled_rows_streamed<F8>(job);
    if (job.type == DType::f4e2m1x2 && scales_on_lanes(job.scales)) return scaled_rows_streamed<F4>(job);
  }
  if (job.tokens <= kDirectTokens) {
    if (job.type == DType::f32) return rows_direct<F32>(job);
    if (job.type == DType::bf16) return rows_direct<Bf16>(job);
    if (job.type == DType::f16) return rows_direct<F16>(job);
  }
  rows_tiled(job);
}

// silu(g) = g / (1 + e^-g). The product -g * log2(e) is carried in two parts, so that the result is good to
// a few ulps for large |g| as well.
inline Reg silu(Reg g) {
  const Reg high = Simd::set1(-1.44269502e+00f), low = Simd::set1(-1.92596303e-08f);
  Reg power = Simd::mul(g, high);
  const Reg rest = Simd::fma(g, low, Simd::fms(g, high, power));
  power = -Simd::max(-power, Simd::set1(-126.0f));  // beyond, the quotient is a subnormal or 0
  const Reg e = Simd::exp2(power);
  return g / (Simd::set1(1.0f) + Simd::fma(e, Simd::mul(rest, Simd::set1(6.93147182e-01f)), e));
}

inline void silu_mul(float* gate, const float* up, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Simd::store(gate + i, Simd::mul(silu(Simd::load(gate + i)), Simd::load(up + i)));
  }
  if (i < n) {
    const Reg g = silu(Simd::load_n(gate + i, n - i));
    Simd::store_n(gate + i, Simd::mul(g, Simd::load_n(up + i, n - i)), n - i);
  }
}

}  // namespace
}  // namespace atom::ops
