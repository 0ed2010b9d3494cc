// GGUF blocks by 8-bit activations in AMX tiles, for many tokens.
//
// A slice of 1024 columns of 16 weight rows is unpacked once into L1 (20 KiB) as B tiles (four columns of 16
// rows per line) and meets all tokens: A tile: 16 tokens by one group of 32 (16) columns, as prepared; C
// tile: exact integer sums, tokens by weight rows, which are then scaled into 16 float32 registers. The bound
// is that scaling: 3 (with minimums 4) vector operations per 16 outputs and group.
#if defined(__x86_64__)
#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/simd_avx512.h"
// The kernel needs Simd.
#include "ops/cpu/linear_float_kernel.h"
#include "ops/cpu/linear_int8.h"

namespace atom::ops {
namespace {

constexpr int kRows = 16;
constexpr int kColumns = 1024;         // of a slice
constexpr int64_t kBlockTokens = 192;  // whose activations stay in L2 while the weight rows pass
constexpr int kBatch = 4;              // groups whose sums are under way together

template <class Format>
struct Slice {
  static constexpr int kGroups = kColumns / Format::kGroup;
  alignas(64) int8_t q[kGroups][kRows * Format::kGroup];  // [group][four columns][row][4]
  alignas(64) float d[kGroups][kRows], m[kGroups][kRows];
  int groups = 0;

  // Formats whose blocks are one group begin with one or two half floats.
  void gather_scales(const std::byte* w, int64_t stride, int rows) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i row = _mm512_min_epi32(lane, _mm512_set1_epi32(rows - 1));
    const __m512i at = _mm512_mullo_epi32(row, _mm512_set1_epi32(static_cast<int>(stride)));
    for (int g = 0; g < groups; ++g, w += Format::kBytes) {
      const __m512i pair = _mm512_i32gather_epi32(at, w, 1);
      _mm512_store_ps(d[g], _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pair)));
      if (Format::kMin) {
        _mm512_store_ps(m[g], _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16))));
      }
    }
  }

  // Rows beyond `rows` repeat the first or last one; their products are not stored.
  void unpack(const std::byte* w, int64_t stride, int rows, int64_t columns) {
    groups = static_cast<int>(columns / Format::kGroup);
    alignas(64) int8_t lines[kRows][kColumns];
    constexpr int kBlockGroups = Format::kBlock / Format::kGroup;
    float scales[kBlockGroups], minimums[kBlockGroups];
    for (int r = 0; r < kRows; ++r) {
      const auto* p = reinterpret_cast<const uint8_t*>(w + (r < rows ? r : 0) * stride);
      for (int64_t k = 0; k < columns; k += Format::kBlock, p += Format::kBytes) {
        Format::unpack(p, lines[r] + k, scales, minimums);
        for (int g = 0; kBlockGroups > 1 && g < kBlockGroups; ++g) {
          d[k / Format::kGroup + g][r] = scales[g];
          if (Format::kMin) m[k / Format::kGroup + g][r] = minimums[g];
        }
      }
    }
    if (kBlockGroups == 1) gather_scales(w, stride, rows);
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

// acc[t] += the scaled sums of one group; d and sum32 of the group's columns, `stride` bytes between tokens.
template <class Format>
[[gnu::always_inline]] inline void scale_group(const Slice<Format>& w, int g, const int32_t (&sums)[256],
                                               const float* d, const float* sum32, int64_t stride,
                                               __m512 (&acc)[16]) {
  const __m512 wd = _mm512_load_ps(w.d[g]), wm = Format::kMin ? _mm512_load_ps(w.m[g]) : _mm512_setzero_ps();
  const int64_t floats = stride / 4;
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(sums + 16 * t));
    acc[t] = _mm512_fmadd_ps(dot, wd * _mm512_set1_ps(d[t * floats]), acc[t]);
    if (Format::kMin) acc[t] = _mm512_fmadd_ps(wm, _mm512_set1_ps(sum32[t * floats]), acc[t]);
  }
}

// Sums of kBatch groups from `first`; those beyond the slice are of stale numbers and not used.
template <class Format>
void batch_sums(const Slice<Format>& w, int first, const int8_t* q, int64_t stride,
                int32_t (&sums)[kBatch][256]) {
  q += first * Format::kGroup;
  _tile_zero(0);
  _tile_loadd(4, q, stride);
  _tile_loadd(6, w.q[first], kRows * 4);
  _tile_dpbssd(0, 4, 6);
  _tile_zero(1);
  _tile_loadd(5, q + Format::kGroup, stride);
  _tile_loadd(7, w.q[first + 1], kRows * 4);
  _tile_dpbssd(1, 5, 7);
  _tile_zero(2);
  _tile_loadd(4, q + 2 * Format::kGroup, stride);
  _tile_loadd(6, w.q[first + 2], kRows * 4);
  _tile_dpbssd(2, 4, 6);
  _tile_zero(3);
  _tile_loadd(5, q + 3 * Format::kGroup, stride);
  _tile_loadd(7, w.q[first + 3], kRows * 4);
  _tile_dpbssd(3, 5, 7);
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
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
  alignas(64) int32_t sums[kBatch][256];
  const int64_t stride = layout.token_bytes();
  const int8_t* q = Int8Layout::q(x) + k;
  const float *d = layout.d(x) + k / 32, *sum = layout.sum32(x) + k / 32;
  for (int g = 0; g < w.groups; g += kBatch) {
    batch_sums(w, g, q, stride, sums);
    const int n = w.groups - g < kBatch ? w.groups - g : kBatch;
    for (int i = 0; i < n; ++i) {
      const int block = (g + i) * Format::kGroup / 32;
      scale_group(w, g + i, sums[i], d + block, sum + block, stride, acc);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    if (t < tokens) _mm512_mask_storeu_ps(out + t * out_stride, mask, acc[t]);
  }
}

// Tokens [first, first + tokens) of the job.
template <class Format>
void tiled_rows(const RowJob& job, const Int8Layout& layout, int64_t first, int64_t tokens) {
  const std::byte* x =
      static_cast<const std::byte*>(job.prepared) + (job.first_token + first) * layout.token_bytes();
  Slice<Format> slice;
  for (int64_t k = 0; k < job.x.cols; k += kColumns) {
    const int64_t columns = job.x.cols - k < kColumns ? job.x.cols - k : kColumns;
    for (int64_t r = 0; r < job.rows; r += kRows) {
      const int rows = static_cast<int>(job.rows - r < kRows ? job.rows - r : kRows);
      slice.unpack(job.w + r * job.w_stride + k / Format::kBlock * Format::kBytes, job.w_stride, rows,
                   columns);
      asm volatile("" : : : "memory");  // tile loads do not declare what they read
      for (int64_t t = 0; t < tokens; t += kTokenTile) {
        const int in_tile = static_cast<int>(tokens - t < kTokenTile ? tokens - t : kTokenTile);
        multiply(slice, layout, x + t * layout.token_bytes(), k, in_tile, rows,
                 job.out + (first + t) * job.out_stride + r, job.out_stride);
      }
    }
  }
}

template <class Format>
void tiled_rows(const RowJob& job) {
  configure<Format>();
  for (int64_t t = 0; t < job.tokens; t += kBlockTokens) {
    const int64_t left = job.tokens - t;
    tiled_rows<Format>(job, Int8Layout(job.x.cols), t, left < kBlockTokens ? left : kBlockTokens);
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
