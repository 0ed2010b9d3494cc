// Tile configuration and the 16 x 16 transpose, shared by the _amx files; internal linkage.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace atom::ops {
namespace {

// Rows and row bytes of the eight tile registers.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int rows_of_tile, int bytes) {
    rows[tile] = static_cast<uint8_t>(rows_of_tile);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};

// The compiler's own intrinsic claims to read eight bytes only, so stores before it may be dropped.
// Also orders earlier stores before the tile loads that follow, which do not declare what they read.
inline void load_tile_shapes(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
}

// v[i] lane j <- v[j] lane i.
inline void transpose(__m512i (&v)[16]) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512i lo01 = _mm512_unpacklo_epi32(v[i], v[i + 1]), hi01 = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    const __m512i lo23 = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]);
    const __m512i hi23 = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);
    a[i] = _mm512_unpacklo_epi64(lo01, lo23);  // lanes 4 c + (0..3): column 4 c + 0 of rows i..i+3
    a[i + 1] = _mm512_unpackhi_epi64(lo01, lo23);
    a[i + 2] = _mm512_unpacklo_epi64(hi01, hi23);
    a[i + 3] = _mm512_unpackhi_epi64(hi01, hi23);
  }
  for (int j = 0; j < 4; ++j) {  // 4 x 4 blocks of four lanes
    const __m512i p = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88),
                  q = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xDD);
    const __m512i r = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
    const __m512i s = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xDD);
    v[j] = _mm512_shuffle_i32x4(p, r, 0x88);
    v[8 + j] = _mm512_shuffle_i32x4(p, r, 0xDD);
    v[4 + j] = _mm512_shuffle_i32x4(q, s, 0x88);
    v[12 + j] = _mm512_shuffle_i32x4(q, s, 0xDD);
  }
}

inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

}  // namespace
}  // namespace atom::ops
