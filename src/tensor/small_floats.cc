#include "tensor/small_floats.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace atom {

float f8e4m3_to_f32(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24, magnitude = bits & 0x7F;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000);
  if (magnitude < 8) {  // subnormal: a multiple of 2^-9
    return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f) | sign);
  }
  return std::bit_cast<float>(sign | (magnitude + (120 << 3)) << 20);
}

float e8m0_to_f32(uint8_t bits) {
  if (bits == 0xFF) return std::bit_cast<float>(0x7FC00000);
  return std::bit_cast<float>(bits == 0 ? 0x00400000u : static_cast<uint32_t>(bits) << 23);
}

uint8_t e8m0_scale(float amax) {
  int exponent;
  const double fraction = std::frexp(static_cast<double>(std::max(amax, 1e-4f)) / kF8e4m3Max, &exponent);
  return static_cast<uint8_t>((fraction == 0.5 ? exponent - 1 : exponent) + 127);
}

float f4e2m1_to_f32(uint8_t bits) {
  constexpr float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return bits & 8 ? -kMagnitudes[bits & 7] : kMagnitudes[bits & 7];
}

}  // namespace atom
