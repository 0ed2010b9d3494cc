// GGUF blocks by 8-bit activations in AMX tiles, for many tokens.
//
// A slice of 512 columns of 16 weight rows is unpacked once into L1 as B tiles (four columns of 16 rows per
// line) and meets all tokens: A tile: 16 tokens by one group of 32 (16) columns, as prepared; C tile: exact
// integer sums, tokens by weight rows, which are then scaled into 16 float32 registers. The bound is that
// scaling: 3 (with minimums 4) vector operations per 16 outputs and group.
#if defined(__x86_64__)
#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/simd_avx512.h"
// The kernel needs Simd.
#include "ops/cpu/linear_float_kernel.h"
#include "ops/cpu/linear_int8.h"

namespace atom::ops {
namespace {

constexpr int kRows = 16;

template <class Format>
struct Slice {
  static constexpr int kGroups = kInt8Slice / Format::kGroup;
  alignas(64) int8_t q[kGroups][kRows * Format::kGroup];  // [group][four columns][row][4]
  alignas(64) float d[kGroups][kRows], m[kGroups][kRows];
  int groups = 0;

  // Rows beyond `rows` become zeros.
  void unpack(const std::byte* w, int64_t stride, int rows, int64_t columns) {
    constexpr int kBlockGroups = Format::kBlock / Format::kGroup;
    groups = static_cast<int>(columns / Format::kGroup);
    alignas(64) int8_t lines[kRows][kInt8Slice];
    float scales[kBlockGroups], minimums[kBlockGroups];
    for (int r = 0; r < kRows; ++r) {
      const auto* p = reinterpret_cast<const uint8_t*>(w + (r < rows ? r : 0) * stride);
      for (int64_t k = 0; k < columns; k += Format::kBlock, p += Format::kBytes) {
        Format::unpack(p, lines[r] + k, scales, minimums);
        for (int g = 0; g < kBlockGroups; ++g) {
          d[k / Format::kGroup + g][r] = scales[g];
          if (Format::kMin) m[k / Format::kGroup + g][r] = minimums[g];
        }
      }
    }
    for (int64_t k = 0; k < columns; k += 64) {  // a last half unit is transposed in vain
      __m512i v[16];
      for (int r = 0; r < kRows; ++r) v[r] = _mm512_load_si512(lines[r] + k);
      transpose(v);
      int8_t* out = &q[0][0] + k * kRows;
      for (int i = 0; i < 16; ++i) _mm512_store_si512(out + 64 * i, v[i]);
    }
  }
};

template <class Format>
void configure() {
  TileShapes shapes;
  for (int c = 0; c < 4; ++c) shapes.set(c, kTokenTile, kRows * 4);
  shapes.set(4, kTokenTile, Format::kGroup);
  shapes.set(5, kTokenTile, Format::kGroup);
  shapes.set(6, Format::kGroup / 4, kRows * 4);
  shapes.set(7, Format::kGroup / 4, kRows * 4);
  load_tile_shapes(shapes);
}

// acc[t] += the scaled sums of one group.
template <class Format>
void scale_group(const Slice<Format>& w, int g, const int32_t (&sums)[256], const Int8Layout& layout,
                 const std::byte* x, int64_t k, __m512 (&acc)[16]) {
  const __m512 d = _mm512_load_ps(w.d[g]), m = Format::kMin ? _mm512_load_ps(w.m[g]) : _mm512_setzero_ps();
  const float* dx = layout.d(x) + k / 32;
  const float* sum = layout.sum32(x) + k / 32;
  const int64_t stride = layout.token_bytes() / 4;
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(sums + 16 * t));
    acc[t] = _mm512_fmadd_ps(dot, d * _mm512_set1_ps(dx[t * stride]), acc[t]);
    if (Format::kMin) acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(sum[t * stride]), acc[t]);
  }
}

// One weight slice by one tile of tokens.
template <class Format>
void multiply(const Slice<Format>& w, const Int8Layout& layout, const std::byte* x, int64_t k, int tokens,
              int rows, float* out, int64_t out_stride) {
  const __mmask16 mask = first_lanes(rows);
  __m512 acc[16];
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    acc[t] = k > 0 && t < tokens ? _mm512_maskz_loadu_ps(mask, out + t * out_stride) : _mm512_setzero_ps();
  }
  alignas(64) int32_t sums[2][256];
  const int8_t* q = Int8Layout::q(x) + k;
  const int64_t stride = layout.token_bytes();
  int g = 0;
  for (; g + 2 <= w.groups; g += 2, k += 2 * Format::kGroup, q += 2 * Format::kGroup) {
    _tile_zero(0);
    _tile_loadd(4, q, stride);
    _tile_loadd(6, w.q[g], kRows * 4);
    _tile_dpbssd(0, 4, 6);
    _tile_zero(1);
    _tile_loadd(5, q + Format::kGroup, stride);
    _tile_loadd(7, w.q[g + 1], kRows * 4);
    _tile_dpbssd(1, 5, 7);
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    scale_group(w, g, sums[0], layout, x, k, acc);
    scale_group(w, g + 1, sums[1], layout, x, k + Format::kGroup, acc);
  }
  if (g < w.groups) {
    _tile_zero(0);
    _tile_loadd(4, q, stride);
    _tile_loadd(6, w.q[g], kRows * 4);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, sums[0], 64);
    scale_group(w, g, sums[0], layout, x, k, acc);
  }
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    if (t < tokens) _mm512_mask_storeu_ps(out + t * out_stride, mask, acc[t]);
  }
}

template <class Format>
void tiled_rows(const RowJob& job) {
  const Int8Layout layout(job.x.cols);
  const std::byte* x = static_cast<const std::byte*>(job.prepared) + job.first_token * layout.token_bytes();
  configure<Format>();
  Slice<Format> slice;
  for (int64_t k = 0; k < job.x.cols; k += kInt8Slice) {
    const int64_t columns = job.x.cols - k < kInt8Slice ? job.x.cols - k : kInt8Slice;
    for (int64_t r = 0; r < job.rows; r += kRows) {
      const int rows = static_cast<int>(job.rows - r < kRows ? job.rows - r : kRows);
      slice.unpack(job.w + r * job.w_stride + k / Format::kBlock * Format::kBytes, job.w_stride, rows,
                   columns);
      asm volatile("" : : : "memory");  // tile loads do not declare what they read
      for (int64_t t = 0; t < job.tokens; t += kTokenTile) {
        const int tokens = static_cast<int>(job.tokens - t < kTokenTile ? job.tokens - t : kTokenTile);
        multiply(slice, layout, x + t * layout.token_bytes(), k, tokens, rows,
                 job.out + t * job.out_stride + r, job.out_stride);
      }
    }
  }
  _tile_release();
}

void int8_tile_rows(const RowJob& job) {
  with_format(job.type, [&]<class Format>() { tiled_rows<Format>(job); });
}

}  // namespace

const RowKernel kRowsInt8Amx = {int8_prepared_bytes, int8_prepare, nullptr, int8_tile_rows, silu_mul, kRows};

}  // namespace atom::ops
#endif
