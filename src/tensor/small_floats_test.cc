#include "tensor/small_floats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tensor/dtype.h"

namespace atom {
namespace {

// From the definition: sign, four exponent bits with bias 7, three of mantissa; all ones is NaN.
double e4m3_by_definition(int byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  if ((byte & 0x7F) == 0x7F) value = std::numeric_limits<double>::quiet_NaN();
  return byte & 0x80 ? -value : value;
}

// The nearest of all finite values by search; of two equally near ones that with an even last bit.
int nearest_e4m3(double value) {
  if (std::isnan(value)) return 0x7F;
  int best = 0;
  for (int magnitude = 1; magnitude < 0x7F; ++magnitude) {
    const double now = std::abs(e4m3_by_definition(magnitude) - std::abs(value));
    const double before = std::abs(e4m3_by_definition(best) - std::abs(value));
    if (now < before || (now == before && magnitude % 2 == 0)) best = magnitude;
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}

TEST(SmallFloats, EveryE4m3ByteIsDecodedByItsDefinition) {
  for (int byte = 0; byte < 256; ++byte) {
    const float got = f8e4m3_to_f32(static_cast<uint8_t>(byte));
    const double want = e4m3_by_definition(byte);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << byte;
    } else {
      EXPECT_EQ(got, want) << byte;
      EXPECT_EQ(std::signbit(got), std::signbit(want)) << byte;
    }
  }
  EXPECT_EQ(f8e4m3_to_f32(0x07), 0.013671875f);
  EXPECT_EQ(f8e4m3_to_f32(0x3C), 1.5f);
  EXPECT_EQ(f8e4m3_to_f32(0xFE), -448.0f);
}

TEST(SmallFloats, EncodingAnE4m3ValueGivesItsByteBack) {
  for (int byte = 0; byte < 256; ++byte) {
    if ((byte & 0x7F) == 0x7F) continue;
    EXPECT_EQ(f32_to_f8e4m3(f8e4m3_to_f32(static_cast<uint8_t>(byte))), byte);
  }
}

TEST(SmallFloats, EveryBfloat16IsEncodedToTheNearest) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    const int got = f32_to_f8e4m3(value);
    if (std::isnan(value)) {
      EXPECT_EQ(got & 0x7F, 0x7F) << bits;
    } else {
      ASSERT_EQ(got, nearest_e4m3(value)) << value;
    }
  }
}

TEST(SmallFloats, PublishedExamplesOfEncoding) {
  const std::pair<float, int> examples[] = {{1.0625f, 0x38},  {1.1875f, 0x3A}, {464.0f, 0x7E},
                                            {465.0f, 0x7E},   {1e9f, 0x7E},    {0x1p-10f, 0x00},
                                            {0x3p-10f, 0x02}, {-0.3f, 0xAA},   {NAN, 0x7F}};
  for (const auto& [value, byte] : examples) EXPECT_EQ(f32_to_f8e4m3(value), byte) << value;
  EXPECT_EQ(f32_to_f8e4m3(std::numeric_limits<float>::infinity()), 0x7E);
  EXPECT_EQ(f32_to_f8e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
}

TEST(SmallFloats, PowerOfTwoScalesAreRoundedUpBeforeTheValues) {
  EXPECT_EQ(e8m0_scale(3), 120);
  EXPECT_EQ(f32_to_f8e4m3(3 / e8m0_to_f32(120)), 0x7C);
  EXPECT_EQ(e8m0_scale(448), 127);
  EXPECT_EQ(e8m0_scale(449), 128);
  EXPECT_EQ(e8m0_scale(std::nextafter(448.0f, 500.0f)), 128);
  EXPECT_EQ(f32_to_f8e4m3(449 / e8m0_to_f32(128)), 0x76);
  EXPECT_EQ(e8m0_scale(0), 105);  // that of 1e-4
  EXPECT_EQ(f32_to_f8e4m3(0 / e8m0_to_f32(e8m0_scale(0))), 0);
}

TEST(SmallFloats, E8m0IsAPowerOfTwo) {
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(e8m0_to_f32(static_cast<uint8_t>(byte)), std::ldexp(1.0f, byte - 127)) << byte;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

TEST(SmallFloats, E2m1ValuesByDefinition) {
  for (int code = 0; code < 16; ++code) {
    const int exponent = code >> 1 & 3, mantissa = code & 1;
    const double magnitude = exponent == 0 ? mantissa * 0.5 : std::ldexp(2 + mantissa, exponent - 2);
    EXPECT_EQ(f4e2m1_to_f32(static_cast<uint8_t>(code)), code & 8 ? -magnitude : magnitude) << code;
  }
}

}  // namespace
}  // namespace atom
