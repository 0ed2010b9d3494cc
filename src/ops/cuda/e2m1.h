// E2M1 in registers, widened to bf16 exactly. Device code only.
#pragma once
#include "ops/cuda/mma.h"

namespace atom::ops::gpu_kernels {

// Eight E2M1 with their scale, E8M0, as pairs of bf16: elements 0 and 4, 1 and 5, 2 and 6, 3 and 7. As bf16,
// the bits of E2M1 mean 2^-126 of its value. kLarge: some scale is more than one factor can hold.
template <bool kLarge>
__device__ inline void widen_word(uint32_t word, uint32_t scale, uint32_t (&out)[4]) {
  const uint32_t factor = (kLarge ? min(scale, 128u) + 126 : scale + 126) * 0x00800080u;
  const uint32_t high = word >> 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // The sign goes to bit 15 and the size to bits 8 to 6, in both halves; one product moves both.
    const uint32_t four = (i < 2 ? word : high) & (i % 2 == 0 ? 0x000F000Fu : 0x00F000F0u);
    const uint32_t moved = four * (i % 2 == 0 ? 0x1040u : 0x104u) & 0x81C081C0u;
    out[i] = multiply_pairs(moved, factor);
  }
  if constexpr (kLarge) {
    const uint32_t rest = scale <= 128 ? 0x3F803F80u : scale == 255 ? 0x7FC07FC0u : (scale - 1) * 0x00800080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = multiply_pairs(out[i], rest);
  }
}

}  // namespace atom::ops::gpu_kernels
