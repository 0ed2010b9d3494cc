#include "tensor/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tensor/small_floats.h"

namespace atom {
namespace {

std::vector<float> normal(size_t n, float scale) {
  std::mt19937 rng(7);
  std::normal_distribution<float> values(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = values(rng);
  return x;
}

// The nearest by search; of two equally near ones that with an even code.
int nearest_e2m1(float value) {
  int best = 0;
  for (int code = 1; code < 8; ++code) {
    const float now = std::abs(f4e2m1_to_f32(static_cast<uint8_t>(code)) - std::abs(value));
    const float before = std::abs(f4e2m1_to_f32(static_cast<uint8_t>(best)) - std::abs(value));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(value) ? 8 : 0);
}

TEST(Quantise, E2m1TakesTheNearest) {
  for (int i = -1000; i <= 1000; ++i) {
    const float value = static_cast<float>(i) / 128;  // all ties are among these
    EXPECT_EQ(f32_to_f4e2m1(value), nearest_e2m1(value)) << value;
  }
}

TEST(Quantise, Fp8BlocksFillTheirRange) {
  constexpr int64_t kRows = 3, kCols = 300, kStride = 310, kBlock = 128;
  std::vector<float> x = normal(kRows * kStride, 0.02f);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = kBlock; c < 2 * kBlock; ++c)
      x[static_cast<size_t>(r * kStride + c)] = 0;  // a block of zeros
  }
  std::vector<uint8_t> elements(kRows * kCols);
  std::vector<float> scales(3);
  quantise_f8e4m3(x.data(), kRows, kCols, kStride, kBlock, elements.data(), scales.data());
  EXPECT_EQ(scales[1], 1);
  for (int64_t block : {0, 2}) {
    float amax = 0;
    int most = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = block * kBlock; c < std::min(kCols, (block + 1) * kBlock); ++c) {
        const float want = x[static_cast<size_t>(r * kStride + c)];
        const uint8_t code = elements[static_cast<size_t>(r * kCols + c)];
        amax = std::max(amax, std::abs(want));
        most = std::max(most, code & 0x7F);
        // Three bits of mantissa; multiples of 2^-9 of the scale below 2^-6.
        EXPECT_EQ(code, f32_to_f8e4m3(want / scales[static_cast<size_t>(block)]));
        const float got = f8e4m3_to_f32(code) * scales[static_cast<size_t>(block)];
        EXPECT_LE(std::abs(got - want),
                  std::max(std::abs(want) / 16, scales[static_cast<size_t>(block)] * 0x1p-10f) * 1.0001f);
      }
    }
    EXPECT_EQ(scales[static_cast<size_t>(block)], amax / 448);
    EXPECT_EQ(most, 0x7E);  // the largest becomes the largest
  }
}

TEST(Quantise, Fp8OfTinyNumbersHasANormalScale) {
  const float x[2] = {0x1p-140f, -0x1p-149f};
  uint8_t elements[2];
  float scale = 0;
  quantise_f8e4m3(x, 1, 2, 2, 128, elements, &scale);
  EXPECT_EQ(scale, 0x1p-126f);
  EXPECT_EQ(elements[0], 0);  // 2^-14 of the scale
}

double squared_error(const float* x, const uint8_t* packed, uint8_t exponent) {
  double error = 0;
  for (int i = 0; i < kMxfp4Group; ++i) {
    const uint8_t code = packed[i / 2] >> (i % 2 * 4) & 15;
    const double d = static_cast<double>(x[i]) -
                     static_cast<double>(f4e2m1_to_f32(code)) * static_cast<double>(e8m0_to_f32(exponent));
    error += d * d;
  }
  return error;
}

TEST(Quantise, Mxfp4GroupsHaveTheBestPowerOfTwo) {
  constexpr int64_t kRows = 4, kCols = 256;
  const std::vector<float> x = normal(kRows * kCols, 0.03f);
  std::vector<uint8_t> elements(kRows * kCols / 2), exponents(kRows * kCols / kMxfp4Group);
  quantise_mxfp4(x.data(), kRows, kCols, kCols, elements.data(), exponents.data());
  for (size_t g = 0; g < exponents.size(); ++g) {
    const float* group = x.data() + g * kMxfp4Group;
    const double got = squared_error(group, elements.data() + g * kMxfp4Group / 2, exponents[g]);
    for (int exponent = 100; exponent < 140; ++exponent) {  // of all, the codes being the nearest
      uint8_t packed[kMxfp4Group / 2];
      for (int i = 0; i < kMxfp4Group; i += 2) {
        const float scale = e8m0_to_f32(static_cast<uint8_t>(exponent));
        packed[i / 2] =
            static_cast<uint8_t>(nearest_e2m1(group[i] / scale) | nearest_e2m1(group[i + 1] / scale) << 4);
      }
      EXPECT_LE(got, squared_error(group, packed, static_cast<uint8_t>(exponent)) * (1 + 1e-5))
          << g << " " << exponent;
    }
  }
}

TEST(Quantise, Mxfp4KeepsWhatItCanSay) {
  float x[kMxfp4Group];
  for (int i = 0; i < kMxfp4Group; ++i) x[i] = f4e2m1_to_f32(static_cast<uint8_t>(i % 16)) * 0x1p-9f;
  uint8_t elements[kMxfp4Group / 2], exponent = 0;
  quantise_mxfp4(x, 1, kMxfp4Group, kMxfp4Group, elements, &exponent);
  EXPECT_EQ(exponent, 127 - 9);
  EXPECT_EQ(squared_error(x, elements, exponent), 0);
  const float zeros[kMxfp4Group] = {};
  quantise_mxfp4(zeros, 1, kMxfp4Group, kMxfp4Group, elements, &exponent);
  EXPECT_EQ(exponent, 127);
  EXPECT_EQ(elements[0], 0);
}

TEST(Quantise, Mxfp4AtTheEndsOfItsExponents) {
  float x[kMxfp4Group] = {std::numeric_limits<float>::max(), 1, 0x1p-149f};
  uint8_t elements[kMxfp4Group / 2], exponent = 0;
  quantise_mxfp4(x, 1, kMxfp4Group, kMxfp4Group, elements, &exponent);
  EXPECT_EQ(f4e2m1_to_f32(elements[0] & 15) * e8m0_to_f32(exponent), 0x1.8p127f);
  x[0] = x[1] = 0;
  quantise_mxfp4(x, 1, kMxfp4Group, kMxfp4Group, elements, &exponent);
  EXPECT_LE(exponent, 1);
}

}  // namespace
}  // namespace atom
