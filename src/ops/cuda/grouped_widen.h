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

__device__ inline void widen_matrix(uint32_t raw, int i, uint32_t (&out)[1][4], Bf16) { out[0][i] = raw; }
// As bf16, the bits of E4M3 mean 2^-120 of its value. (Its NaN becomes 480.)
__device__ inline void widen_matrix(uint32_t raw, int i, uint32_t (&out)[2][4], Fp8) {
  constexpr uint32_t kFactor = 0x7B807B80u;  // 2^120, twice
  const int row_half = i & 1, step = i >> 1;
  out[step][row_half] = multiply_pairs((raw << 8 & 0x80008000u) | (raw << 4 & 0x07F007F0u), kFactor);
  out[step][row_half + 2] = multiply_pairs((raw & 0x80008000u) | (raw >> 4 & 0x07F007F0u), kFactor);
}
// The scales of a thread's two rows for one stage, if they are not in its pieces.
template <class T>
struct StageScales {};
template <>
struct StageScales<Fp8> {
  float row[2];
};

// Where a thread's two rows have their scales.
struct ScaleRows {
  const std::byte* row[2];
};

template <class T>
__device__ void load_scales(StageScales<T>& to, const GroupedProduct& a, const ScaleRows& rows, int k) {
  if constexpr (std::is_same_v<T, Fp8>) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int col = k * Cut<Fp8, 8>::kStageCols + (h == 1 && a.gated ? a.up : a.w).first.first_col;
      to.row[h] = reinterpret_cast<const float*>(rows.row[h])[col >> a.block_shift];
    }
  }
}

#endif  // ATOM_HOPPER

}  // namespace atom::ops::gpu_kernels
