// The 8- and 4-bit floating-point formats that quantised checkpoints store (OCP 8-bit and microscaling
// formats).
#pragma once
#include <cstdint>

namespace atom {

inline constexpr float kF8e4m3Max = 448;

// E4M3: no infinities; 0x7F and 0xFF are NaN.
float f8e4m3_to_f32(uint8_t bits);
// To the nearest, ties to even; beyond the largest value it saturates. NaN stays NaN.
uint8_t f32_to_f8e4m3(float value);

// E8M0, a power of two: 2^(bits - 127); 0xFF is NaN.
float e8m0_to_f32(uint8_t bits);
// The smallest power of two by which a block whose largest magnitude is `amax` can be divided to fit E4M3.
// `amax` counts as at least 1e-4, so that a block of zeros has a scale too.
uint8_t e8m0_scale(float amax);

// E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, in the low four bits.
float f4e2m1_to_f32(uint8_t bits);
// To the nearest, ties to the even code; beyond 6 it saturates. Not for NaN.
uint8_t f32_to_f4e2m1(float value);

}  // namespace atom
