#include "tensor/dtype.h"

#include <bit>
#include <cmath>

#include "base/check.h"

namespace atom {
namespace {

constexpr DTypeInfo kInfo[kDTypes] = {
    {"f32", 1, 4},      {"bf16", 1, 2},   {"f16", 1, 2},        {"f8e4m3", 1, 1},   {"f8e5m2", 1, 1},
    {"f4e2m1x2", 2, 1}, {"e8m0", 1, 1},   {"i8", 1, 1},         {"u8", 1, 1},       {"i16", 1, 2},
    {"i32", 1, 4},      {"i64", 1, 8},    {"mxfp4_8x64", 2, 1}, {"q4_0", 32, 18},   {"q4_1", 32, 20},
    {"q5_0", 32, 22},   {"q5_1", 32, 24}, {"q8_0", 32, 34},     {"q4_k", 256, 144}, {"q5_k", 256, 176},
    {"q6_k", 256, 210},
};

}  // namespace

const DTypeInfo& dtype_info(DType dtype) {
  const int index = static_cast<int>(dtype);
  CHECK(index < kDTypes, "dtype {}", index);
  return kInfo[index];
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i < kDTypes; ++i) {
    if (name == kInfo[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;
  if (magnitude >= 0x477FF000) return sign | 0x7C00;  // rounds to 65536 or more
  if (magnitude < 0x38800000) {                       // subnormal half: a multiple of 2^-24
    const float scaled = std::nearbyint(std::bit_cast<float>(magnitude) * 16777216.0f);
    return sign | static_cast<uint16_t>(scaled);
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}

}  // namespace atom
