#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/rope_frequencies.h"

namespace atom::ops {
namespace {

void expect_relative(float actual, double expected) {
  EXPECT_NEAR(actual, expected, 1e-6 * std::abs(expected));
}

struct Angles {
  std::vector<float> cos, sin;
};

Angles angles(const std::vector<int32_t>& positions, const std::vector<float>& inv_freq,
              ComputeRopeAngles op = {}) {
  ThreadPool pool(2);
  Stream stream(pool);
  const auto tokens = static_cast<int64_t>(positions.size()), pairs = static_cast<int64_t>(inv_freq.size());
  Angles result{std::vector<float>(tokens * pairs), std::vector<float>(tokens * pairs)};
  op.out.cos = make_tensor(result.cos.data(), DType::f32, {tokens, pairs});
  op.out.sin = make_tensor(result.sin.data(), DType::f32, {tokens, pairs});
  op.positions = positions;
  op.inv_freq = inv_freq;
  run(stream, op);
  return result;
}

TEST(RopeFrequencies, Llama3KeepsShortWavesDividesLongOnesAndBlendsBetween) {
  RopeParameters p{.kind = RopeKind::llama3, .rotary_dim = 64, .theta = 5e5, .factor = 32};
  p.original_max_position = 8192;
  const auto plain = rope_inv_freq({.rotary_dim = 64, .theta = 5e5});
  const auto f = rope_inv_freq(p);
  for (int i = 0; i <= 14; ++i) EXPECT_EQ(f[i], plain[i]) << i;
  for (int i = 18; i < 32; ++i) EXPECT_EQ(f[i], plain[i] / 32) << i;
  expect_relative(f[15], 0.001290547928);
  expect_relative(f[16], 0.000429556797);
  expect_relative(f[17], 9.708287803e-05);
  expect_relative(f[31], 9.418306725e-08);
}

TEST(RopeFrequencies, Llama3OfHeadDim128) {
  RopeParameters p{.kind = RopeKind::llama3, .rotary_dim = 128, .theta = 5e5, .factor = 8};
  p.original_max_position = 8192;
  const auto plain = rope_inv_freq({.rotary_dim = 128, .theta = 5e5});
  const auto f = rope_inv_freq(p);
  for (int i = 0; i <= 28; ++i) EXPECT_EQ(f[i], plain[i]) << i;
  for (int i = 29; i <= 34; ++i) EXPECT_TRUE(f[i] < plain[i] && f[i] > plain[i] / 8) << i;
  for (int i = 35; i < 64; ++i) EXPECT_EQ(f[i], plain[i] / 8) << i;
  expect_relative(f[29], 0.002166570764);
  expect_relative(f[31], 0.000856751413);
  expect_relative(f[34], 0.000178507812);
  expect_relative(f[63], 3.068925989e-07);
}

TEST(RopeFrequencies, YarnTruncatesItsRangeUnlessToldNotTo) {
  RopeParameters p{.kind = RopeKind::yarn, .rotary_dim = 64, .theta = 150000, .factor = 32};
  p.original_max_position = 4096;
  p.truncate = false;
  auto f = rope_inv_freq(p);
  expect_relative(f[9], 0.0317056962);
  expect_relative(f[12], 0.0067949595);
  expect_relative(f[17], 0.000129318701);
  expect_relative(f[18], 3.830881237e-05);
  p.truncate = true;
  f = rope_inv_freq(p);
  expect_relative(f[9], 0.0316207523);
  expect_relative(f[12], 0.0070157139);
  expect_relative(f[17], 0.000227947796);
}

TEST(RopeFrequencies, YarnMagnitudeFollowsTheFactorOrTheMscales) {
  RopeParameters p{.kind = RopeKind::yarn, .rotary_dim = 64, .theta = 1e4, .factor = 40};
  p.original_max_position = 4096;
  EXPECT_NEAR(rope_magnitude(p), 0.1 * std::log(40.0) + 1, 1e-6);
  p.mscale = 0.707;
  EXPECT_NEAR(rope_magnitude(p), 0.1 * std::log(40.0) + 1, 1e-6);  // one alone changes nothing
  p.mscale_all_dim = 1.0;
  EXPECT_NEAR(rope_magnitude(p), (0.0707 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1), 1e-6);
  p.attention_factor = 1.5;
  EXPECT_EQ(rope_magnitude(p), 1.5f);
  EXPECT_EQ(rope_magnitude({.kind = RopeKind::llama3, .rotary_dim = 64, .factor = 8}), 1.0f);
}

TEST(RopeFrequencies, PartialRotaryDividesTheExponentByTheRotatedLanes) {
  EXPECT_NEAR(rope_inv_freq({.rotary_dim = 64, .theta = 1e7})[1], 0.6042963902, 1e-6);
}

TEST(RopeFrequencies, LinearDividesEveryPair) {
  const auto plain = rope_inv_freq({.rotary_dim = 32});
  const auto f = rope_inv_freq({.kind = RopeKind::linear, .rotary_dim = 32, .factor = 4});
  for (int i = 0; i < 16; ++i) EXPECT_EQ(f[i], plain[i] / 4);
}

TEST(RopeAngles, StayAccurateAtLargePositions) {
  const Angles a = angles({131071, 262143}, {1.0f});
  EXPECT_NEAR(a.cos[0], -0.8179834994, 1e-6);
  EXPECT_NEAR(a.sin[0], -0.5752416838, 1e-6);
  EXPECT_NEAR(a.cos[1], -0.6091614906, 1e-6);
  EXPECT_NEAR(a.sin[1], 0.7930462019, 1e-6);
}

TEST(RopeAngles, AreTheFloat32ProductOfPositionAndFrequency) {
  const auto f = rope_inv_freq({.rotary_dim = 128, .theta = 1e6});
  std::vector<int32_t> positions;
  for (int32_t p = 0; p < 40; ++p) positions.push_back(p * 6563 + p % 7);
  ComputeRopeAngles op;
  op.magnitude = 1.25f;
  const Angles a = angles(positions, f, op);
  for (size_t t = 0; t < positions.size(); ++t) {
    for (size_t i = 0; i < f.size(); ++i) {
      const float angle = static_cast<float>(positions[t]) * f[i];
      EXPECT_NEAR(a.cos[t * f.size() + i], 1.25 * std::cos(static_cast<double>(angle)), 2e-7);
      EXPECT_NEAR(a.sin[t * f.size() + i], 1.25 * std::sin(static_cast<double>(angle)), 2e-7);
    }
  }
}

TEST(RopeAngles, DynamicGrowsThetaWithTheLengthOfEachToken) {
  RopeParameters p{.kind = RopeKind::dynamic, .rotary_dim = 16, .theta = 1e4, .factor = 2};
  p.original_max_position = 100;
  const auto f = rope_inv_freq(p);
  EXPECT_EQ(f, rope_inv_freq({.rotary_dim = 16, .theta = 1e4}));
  const std::vector<int32_t> positions = {50, 50, 149, 149, 50}, lengths = {100, 60, 150, 150, 300};
  ComputeRopeAngles op;
  op.lengths = lengths;
  op.theta = 1e4f;
  op.factor = 2;
  op.original_length = 100;
  const Angles a = angles(positions, f, op);
  for (size_t t = 0; t < positions.size(); ++t) {
    double theta = 1e4;
    if (lengths[t] > 100) theta *= std::pow(2.0 * lengths[t] / 100 - 1, 16.0 / 14);
    for (int i = 0; i < 8; ++i) {
      EXPECT_NEAR(a.cos[t * 8 + i], std::cos(positions[t] * std::pow(theta, -i / 8.0)), 2e-5)
          << t << " " << i;
    }
  }
}

}  // namespace
}  // namespace atom::ops
