// E2M1 in registers, widened exactly. Device code only.
#pragma once
#include "ops/cuda/mma.h"
#include "tensor/mxfp4_pieces.h"

namespace atom::ops::gpu_kernels {

// What a factor of widen_word has left over for scales beyond 128.
__device__ inline void scale_rest(uint32_t scale, uint32_t (&out)[4]) {
  const uint32_t rest = scale <= 128 ? 0x3F803F80u : scale == 255 ? 0x7FC07FC0u : (scale - 1) * 0x00800080u;
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = multiply_pairs(out[i], rest);
}
template <bool kLarge>
__device__ inline uint32_t first_factor(uint32_t scale) {
  return (kLarge ? min(scale, 128u) + 126 : scale + 126) * 0x00800080u;
}

// Eight E2M1 with their scale, E8M0, as pairs of bf16: elements 0 and 4, 1 and 5, 2 and 6, 3 and 7. As bf16,
// the bits of E2M1 mean 2^-126 of its value. kLarge: some scale is more than one factor can hold.
template <bool kLarge>
__device__ inline void widen_word(uint32_t word, uint32_t scale, uint32_t (&out)[4]) {
  const uint32_t factor = first_factor<kLarge>(scale);
  const uint32_t high = word >> 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // The sign goes to bit 15 and the size to bits 8 to 6, in both halves; one product moves both.
    const uint32_t four = (i < 2 ? word : high) & (i % 2 == 0 ? 0x000F000Fu : 0x00F000F0u);
    const uint32_t moved = four * (i % 2 == 0 ? 0x1040u : 0x104u) & 0x81C081C0u;
    out[i] = multiply_pairs(moved, factor);
  }
  if constexpr (kLarge) scale_rest(scale, out);
}

// `high` where a sign is in a pair of 16-bit numbers, else `low`.
__device__ inline uint32_t signs_and(uint32_t low, uint32_t high, uint32_t signs) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xD8;" : "=r"(r) : "r"(low), "r"(high), "r"(signs));
  return r;
}

// The same of a word of a piece (tensor/mxfp4_pieces.h).
template <bool kLarge>
__device__ inline void widen_piece_word(uint32_t word, uint32_t scale, uint32_t (&out)[4]) {
  constexpr uint32_t kBits = 0x81C081C0u, kSigns = 0x80008000u;
  const uint32_t factor = first_factor<kLarge>(scale);
  out[0] = signs_and(word >> 3, word, kSigns) & kBits;
  out[1] = (word & 0x008E008Eu) * 0x120u & kBits;
  out[2] = signs_and(word >> 6, word << 7, kSigns) & kBits;
  out[3] = (word & 0x00710071u) * 0x8004u & kBits;
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = multiply_pairs(out[i], factor);
  if constexpr (kLarge) scale_rest(scale, out);
}
// As pairs of f16 that mean 2^-14 of the values, in the same order.
inline constexpr float kFp4InF16 = 0x1p14f;
__device__ inline void widen_piece_word(uint32_t word, uint32_t (&out)[4]) {
  constexpr uint32_t kBits = 0x8E008E00u;
  const uint32_t others = signs_and(word >> 3, word << 7, 0x80808080u);
  out[0] = word & kBits;
  out[1] = word << 8 & kBits;
  out[2] = others & kBits;
  out[3] = others << 8 & kBits;
}

}  // namespace atom::ops::gpu_kernels
