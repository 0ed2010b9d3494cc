// Block layouts against blocks written out by hand.
#include "ops/cpu/dequant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace atom::ops {
namespace {

using Bytes = std::vector<uint8_t>;

void put_half(Bytes& block, size_t at, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(&block[at], &bits, 2);
}

std::vector<float> widen(DType type, const Bytes& block, int64_t n) {
  Bytes shifted(block.size() + 1);  // an odd address
  std::memcpy(shifted.data() + 1, block.data(), block.size());
  std::vector<float> values(n, NAN);
  dequantize_row(type, shifted.data() + 1, values.data(), n);
  return values;
}

TEST(Dequant, PlainTypesWidenExactly) {
  EXPECT_EQ(widen(DType::f32, {0, 0, 0xC0, 0x3F}, 1), std::vector{1.5f});
  EXPECT_EQ(widen(DType::bf16, {0xC0, 0x3F, 0x80, 0xFF}, 2),
            (std::vector{1.5f, -std::numeric_limits<float>::infinity()}));
  // 1.5, the smallest subnormal, -0, infinity.
  EXPECT_EQ(widen(DType::f16, {0x00, 0x3E, 0x01, 0x00, 0x00, 0x80, 0x00, 0x7C}, 4),
            (std::vector{1.5f, 0x1p-24f, -0.0f, std::numeric_limits<float>::infinity()}));
}

TEST(Dequant, EveryHalfEqualsTheScalarConversion) {
  Bytes all(2 * 65536);
  for (int i = 0; i < 65536; ++i) {
    all[2 * i] = static_cast<uint8_t>(i);
    all[2 * i + 1] = static_cast<uint8_t>(i >> 8);
  }
  const std::vector<float> values = widen(DType::f16, all, 65536);
  for (int i = 0; i < 65536; ++i) {
    const float want = f16_to_f32(static_cast<uint16_t>(i));
    ASSERT_TRUE(std::isnan(want) ? std::isnan(values[i]) : want == values[i]) << i;
  }
}

TEST(Dequant, Q4KeepsLowNibblesFirst) {
  Bytes block(18);
  put_half(block, 0, 0.5f);
  for (int i = 0; i < 16; ++i) block[2 + i] = static_cast<uint8_t>(i | (15 - i) << 4);
  std::vector<float> values = widen(DType::q4_0, block, 32);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 0.5f * (i - 8));
    EXPECT_EQ(values[16 + i], 0.5f * (7 - i));
  }
  block.insert(block.begin() + 2, {0, 0});
  put_half(block, 2, -3.0f);
  values = widen(DType::q4_1, block, 32);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 0.5f * i - 3);
    EXPECT_EQ(values[16 + i], 0.5f * (15 - i) - 3);
  }
}

TEST(Dequant, Q5TakesItsFifthBitFromTheWord) {
  Bytes block(22);
  put_half(block, 0, 2.0f);
  block[2] = 0x01, block[5] = 0x80;  // elements 0 and 31
  for (int i = 0; i < 16; ++i) block[6 + i] = static_cast<uint8_t>(i | i << 4);
  std::vector<float> values = widen(DType::q5_0, block, 32);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(values[i], 2.0f * (i % 16 + (i == 0 || i == 31 ? 16 : 0) - 16)) << i;
  }
  block.insert(block.begin() + 2, {0, 0});
  put_half(block, 2, 0.25f);
  values = widen(DType::q5_1, block, 32);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(values[i], 2.0f * (i % 16 + (i == 0 || i == 31 ? 16 : 0)) + 0.25f) << i;
  }
}

TEST(Dequant, Q8IsSigned) {
  Bytes block(34);
  put_half(block, 0, 0.25f);
  block[2] = 0x80, block[33] = 127;
  const std::vector<float> values = widen(DType::q8_0, block, 32);
  EXPECT_EQ(values[0], -32.0f);
  EXPECT_EQ(values[1], 0.0f);
  EXPECT_EQ(values[31], 31.75f);
}

// Scales 1, 18, 35, 52, 5, 22, 39, 56 and minimums 63, 46, 29, 12, 59, 42, 25, 8: bits in both halves.
constexpr int kScales[8] = {1, 18, 35, 52, 5, 22, 39, 56};
constexpr int kMinimums[8] = {63, 46, 29, 12, 59, 42, 25, 8};

void put_scales(Bytes& block) {
  put_half(block, 0, 0.5f);
  put_half(block, 2, 0.125f);
  for (int i = 0; i < 4; ++i) {
    block[4 + i] = static_cast<uint8_t>(kScales[i] | kScales[4 + i] >> 4 << 6);
    block[8 + i] = static_cast<uint8_t>(kMinimums[i] | kMinimums[4 + i] >> 4 << 6);
    block[12 + i] = static_cast<uint8_t>((kScales[4 + i] & 15) | (kMinimums[4 + i] & 15) << 4);
  }
}

TEST(Dequant, Q4KHasSixBitScalesAndMinimums) {
  Bytes block(144);
  put_scales(block);
  for (int i = 0; i < 128; ++i) block[16 + i] = static_cast<uint8_t>(i % 16 | (i / 16 + 3) % 16 << 4);
  const std::vector<float> values = widen(DType::q4_k, block, 256);
  for (int e = 0; e < 256; ++e) {
    const int group = e / 32, byte = e / 64 * 32 + e % 32;
    const int q = group % 2 == 0 ? byte % 16 : (byte / 16 + 3) % 16;
    EXPECT_EQ(values[e], 0.5f * kScales[group] * q - 0.125f * kMinimums[group]) << e;
  }
}

TEST(Dequant, Q5KTakesBitGroupOfEachHighByte) {
  Bytes block(176);
  put_scales(block);
  for (int i = 0; i < 32; ++i) block[16 + i] = static_cast<uint8_t>(i * 37);
  for (int i = 0; i < 128; ++i) block[48 + i] = static_cast<uint8_t>(i % 16 | (i / 16 + 3) % 16 << 4);
  const std::vector<float> values = widen(DType::q5_k, block, 256);
  for (int e = 0; e < 256; ++e) {
    const int group = e / 32, byte = e / 64 * 32 + e % 32;
    int q = group % 2 == 0 ? byte % 16 : (byte / 16 + 3) % 16;
    q += (e % 32 * 37 >> group & 1) * 16;
    EXPECT_EQ(values[e], 0.5f * kScales[group] * q - 0.125f * kMinimums[group]) << e;
  }
}

TEST(Dequant, Q6KHasSignedScalesPerSixteen) {
  Bytes block(210);
  for (int i = 0; i < 128; ++i) block[i] = static_cast<uint8_t>(i * 29);
  for (int i = 0; i < 64; ++i) block[128 + i] = static_cast<uint8_t>(i * 53);
  for (int i = 0; i < 16; ++i) block[192 + i] = static_cast<uint8_t>(i % 2 == 0 ? i + 1 : -i);
  put_half(block, 208, 0.5f);
  const std::vector<float> values = widen(DType::q6_k, block, 256);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128, in_half = e % 128, quarter = in_half / 32;
    const int low_byte = block[64 * half + in_half % 64], high_byte = block[128 + 32 * half + e % 32];
    const int low = in_half < 64 ? low_byte & 15 : low_byte >> 4;
    const int q = (low | (high_byte >> (2 * quarter) & 3) << 4) - 32;
    EXPECT_EQ(values[e], 0.5f * (e / 16 % 2 == 0 ? e / 16 + 1 : -(e / 16)) * q) << e;
  }
}

TEST(Dequant, ConsecutiveBlocksFollowEachOther) {
  Bytes two(36);
  put_half(two, 0, 1.0f);
  put_half(two, 18, 2.0f);
  const std::vector<float> values = widen(DType::q4_0, two, 64);
  EXPECT_EQ(values[31], -8.0f);
  EXPECT_EQ(values[32], -16.0f);
}

}  // namespace
}  // namespace atom::ops
