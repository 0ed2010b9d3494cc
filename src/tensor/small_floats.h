// The 8- and 4-bit floating-point formats that quantised checkpoints store (OCP 8-bit and microscaling
// formats).
#pragma once
#include <bit>
#include <cstdint>

namespace atom {

inline constexpr float kF8e4m3Max = 448;

// E4M3: no infinities; 0x7F and 0xFF are NaN.
float f8e4m3_to_f32(uint8_t bits);
// To the nearest, ties to even; beyond the largest value it saturates. NaN stays NaN. Without branches: whole
// matrices are rounded by it.
inline uint8_t f32_to_f8e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFF;
  // Below 2^-6 the last place counts 2^-9, as that of numbers from 2^14 on.
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
  const uint32_t normal = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
  uint32_t code = magnitude < std::bit_cast<uint32_t>(0x1p-6f) ? small : normal;
  code = code < 0x7E ? code : 0x7E;
  code = magnitude > 0x7F800000 ? 0x7F : code;
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80));
}

// E8M0, a power of two: 2^(bits - 127); 0xFF is NaN.
float e8m0_to_f32(uint8_t bits);
// The smallest power of two by which a block whose largest magnitude is `amax` can be divided to fit E4M3.
// `amax` counts as at least 1e-4, so that a block of zeros has a scale too.
uint8_t e8m0_scale(float amax);

// E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, in the low four bits.
float f4e2m1_to_f32(uint8_t bits);
// To the nearest, ties to the even code; beyond 6 it saturates. Not for NaN.
inline uint8_t f32_to_f4e2m1(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const float a = std::bit_cast<float>(bits & 0x7FFFFFFF);
  const int code =
      (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
  return static_cast<uint8_t>(code | static_cast<int>(bits >> 28 & 8));
}

}  // namespace atom
