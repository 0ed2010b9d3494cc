// Stored weights of a grouped product as fragments of tensor cores' products, and their scales. Device code
// only.
#pragma once
#include "ops/cuda/e2m1.h"
#include "ops/cuda/grouped_walk.h"

namespace atom::ops::gpu_kernels {

#if ATOM_HOPPER

// What ldmatrix gives, 16 bytes of 8 rows in each of four matrices, is widened to fragments of 16 columns.
// Matrix i has rows 8 (i % 2) on; those of i / 2 = 1 have the next 16 bytes.

template <class T>
inline constexpr int kPieceSteps = Vec<T>::kElements / 8;  // products that one ldmatrix gives fragments for

template <class X>
__device__ void widen_matrix(uint32_t raw, int i, uint32_t, uint32_t (&out)[1][4], Bf16, X) {
  out[0][i] = raw;
}
// As bf16, the bits of E4M3 mean 2^-120 of its value. (Its NaN becomes 480.)
template <class X>
__device__ void widen_matrix(uint32_t raw, int i, uint32_t, uint32_t (&out)[2][4], Fp8, X) {
  constexpr uint32_t kFactor = 0x7B807B80u;  // 2^120, twice
  const int row_half = i & 1, step = i >> 1;
  out[step][row_half] = multiply_pairs((raw << 8 & 0x80008000u) | (raw << 4 & 0x07F007F0u), kFactor);
  out[step][row_half + 2] = multiply_pairs((raw & 0x80008000u) | (raw >> 4 & 0x07F007F0u), kFactor);
}
template <bool kLarge>
__device__ void widen_matrix(uint32_t raw, int i, uint32_t scale, uint32_t (&out)[4][4]) {
  uint32_t pairs[4];
  widen_word<kLarge>(raw, scale, pairs);
  const int row_half = i & 1, step = i >> 1 << 1;
#pragma unroll
  for (int p = 0; p < 4; ++p) out[step + p / 2][row_half + p % 2 * 2] = pairs[p];
}
// The upper byte of an f16 with the bits of E2M1 means 2^-14 of its value, the lower is 0: four elements at a
// time.
inline constexpr float kFp4InF16 = 0x1p14f;
__device__ inline void widen_matrix(uint32_t raw, int i, uint32_t, uint32_t (&out)[4][4], Fp4, F16) {
  const int row_half = i & 1, step = i >> 1 << 1;
  const uint32_t low = (raw << 4 & 0x80808080u) | (raw << 1 & 0x0E0E0E0Eu);  // elements 0, 2, 4, 6
  const uint32_t high = (raw & 0x80808080u) | (raw >> 3 & 0x0E0E0E0Eu);      // 1, 3, 5, 7
  out[step][row_half] = __byte_perm(low, 0, 0x2404);                         // 0, 4
  out[step][row_half + 2] = __byte_perm(high, 0, 0x2404);                    // 1, 5
  out[step + 1][row_half] = low & 0xFF00FF00u;                               // 2, 6
  out[step + 1][row_half + 2] = high & 0xFF00FF00u;                          // 3, 7
}

// The scales of a thread's two rows for one stage.
template <class T, class X>
struct StageScales {};
template <class X>
struct StageScales<Fp8, X> {
  float row[2];
};
template <class X>
struct StageScales<Fp4, X> {
  uint32_t row[2];  // of the 64 columns that are this lane's: two bytes, or two bf16 if sums are scaled
};
// The scales of a piece's 64 columns.
struct PieceScales {
  uint32_t row[2];
  // Of matrix i of the piece, as it is stored or as a number.
  __device__ uint32_t stored(int i) const { return i < 2 ? row[i & 1] & 0xFFu : row[i & 1] >> 8; }
  __device__ float number(int i) const {
    return __uint_as_float(i < 2 ? row[i & 1] << 16 : row[i & 1] & 0xFFFF0000u);
  }
};
template <class T, class X>
__device__ PieceScales piece_scales(const StageScales<T, X>& scales, int j, int lane) {
  if constexpr (std::is_same_v<T, Fp4>) {
    return {{shuffle(scales.row[0], (lane & ~3) | j), shuffle(scales.row[1], (lane & ~3) | j)}};
  }
  return {};
}

// Where a thread's two rows have their scales.
struct ScaleRows {
  const std::byte* row[2];
};

template <class T, class X>
__device__ void load_scales(StageScales<T, X>& to, const GroupedProduct& a, const ScaleRows& rows, int k,
                            int lane) {
  if constexpr (std::is_same_v<T, Fp8>) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int col = k * Cut<Fp8, 8>::kStageCols + (h == 1 && a.gated ? a.up : a.w).first.first_col;
      to.row[h] = reinterpret_cast<const float*>(rows.row[h])[col >> a.block_shift];
    }
  } else if constexpr (std::is_same_v<T, Fp4>) {
    const int first = k * 8 + lane % 4 * 2, count = a.cols / 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t low = 0, high = 0;
      if (a.even_scales) {
        if (first < count) low = *reinterpret_cast<const uint16_t*>(rows.row[h] + first);
        high = low >> 8;
        low &= 0xFFu;
      } else {
        if (first < count) low = static_cast<uint32_t>(rows.row[h][first]);
        if (first + 1 < count) high = static_cast<uint32_t>(rows.row[h][first + 1]);
      }
      to.row[h] = std::is_same_v<X, F16> ? low << 7 | high << 23 : low | high << 8;
    }
  }
}

#endif  // ATOM_HOPPER

}  // namespace atom::ops::gpu_kernels
