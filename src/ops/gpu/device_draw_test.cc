// Drawing tokens on a GPU: the same tokens as the reference's, in the right proportions, and chosen ids into
// a step.
#include <fmt/format.h>

#include "ops/argmax.h"
#include "ops/draw.h"
#include "ops/gpu/device_test.h"

namespace atom::ops {
namespace {

class GpuDraw : public GpuOps {
 protected:
  // What the GPU draws for each row.
  std::vector<int32_t> drawn(const Tensor& logits, const std::vector<TokenChoice>& choices) {
    std::vector<int32_t> ids(choices.size(), -7);
    const auto rows = static_cast<int64_t>(choices.size());
    const auto bytes = static_cast<int64_t>(ids.size() * sizeof(int32_t));
    const Tensor out = make_tensor(upload(ids.data(), bytes), DType::i32, {rows}, device_);
    run(*gpu_, ArgMax{out, logits});
    run(*gpu_, DrawTokens{out, logits, upload_span(choices)});
    queue_->copy_to_host(ids.data(), out.data, bytes);
    queue_->wait();
    return ids;
  }

  TokenChoice any_choice() {
    const auto one_of = [&](std::initializer_list<float> values) {
      return values.begin()[rng_() % values.size()];
    };
    return {.place = static_cast<uint64_t>(rng_()) << 32 | rng_(),
            .temperature = one_of({0, 1e-3f, 0.3f, 0.7f, 1, 1.3f, 5, 100}),
            .top_p = one_of({1, 1, 0.999f, 0.95f, 0.8f, 0.3f, 1e-4f}),
            .min_p = one_of({0, 0, 0, 0.01f, 0.2f, 0.9f, 1}),
            .top_k = static_cast<int32_t>(one_of({0, 0, 1, 2, 20, 50, 333, 1024}))};
  }
};

TEST_F(GpuDraw, TokensAreThoseOfTheReference) {
  int64_t draws = 0, other = 0;
  for (const int64_t n : {1, 2, 31, 1000, 1024, 1025, 5003, 32000, 128256}) {
    for (const float spread : {0.0f, 0.02f, 1.0f, 3.0f, 9.0f}) {
      const int64_t rows = n > 100000 ? 48 : 300;
      std::vector<float> values = normals(rows * n, spread);
      for (int64_t i = 0; i < rows * n; ++i) {
        if (i / n % 3 == 1) values[i] = std::round(values[i] * 2) / 2;  // many ties
        if (i / n % 3 == 2 && i % 5 == 0) values[i] = -INFINITY;
      }
      for (int64_t t = 0; t < rows; ++t) values[t * n + n / 2] = 0.5f;
      std::vector<TokenChoice> choices;
      for (int64_t t = 0; t < rows; ++t) choices.push_back(any_choice());
      const Tensor host = make_tensor(values.data(), DType::f32, {rows, n});
      const Tensor device = make_tensor(upload(values.data(), host.bytes()), DType::f32, {rows, n}, device_);
      std::vector<int32_t> want(static_cast<size_t>(rows));
      run(cpu_, DrawTokens{make_tensor(want.data(), DType::i32, {rows}), host, choices});
      const std::vector<int32_t> got = drawn(device, choices);
      for (int64_t t = 0; t < rows; ++t) {
        ++draws;
        if (got[t] == want[t]) continue;
        ++other;
        const TokenChoice& c = choices[t];
        fmt::print("n {} spread {} row {}: {} for {}, T {} top_p {} min_p {} top_k {}\n", n, spread, t,
                   got[t], want[t], c.temperature, c.top_p, c.min_p, c.top_k);
      }
      buffers_.clear();
    }
  }
  EXPECT_GE(draws, 10000);
  EXPECT_LE(other, draws / 10000) << "more than rounding of sums explains";
}

TEST_F(GpuDraw, TheLargestLogitsMayAllLieInFewColumnsOfABlock) {
  constexpr int64_t kN = 128256;
  std::vector<float> values = normals(kN);
  for (int64_t i = 0; i < kN; ++i) {
    if (i % 1024 < 100) values[i] += 50;
  }
  const Tensor host = make_tensor(values.data(), DType::f32, {1, kN});
  const Tensor device = make_tensor(upload(values.data(), host.bytes()), DType::f32, {1, kN}, device_);
  for (const int32_t k : {50, 150, 200, 1000, 1024}) {
    for (uint64_t place = 0; place < 20; ++place) {
      const std::vector<TokenChoice> choice = {
          {.place = place, .temperature = 2, .top_p = 0.97f, .top_k = k}};
      EXPECT_EQ(drawn(device, choice)[0], draw_token(values, choice[0])) << k;
    }
  }
}

TEST_F(GpuDraw, RowsThatAreNotFiniteOrGreedyAreLeftAlone) {
  std::vector<float> values = normals(4 * 1000);
  values[500] = std::nanf("");
  values[1500] = INFINITY;
  std::fill_n(values.begin() + 2000, 1000, -INFINITY);
  values[3777] = 99;
  const Tensor device = make_tensor(upload(values.data(), 16000), DType::f32, {4, 1000}, device_);
  const TokenChoice warm{.place = 1, .temperature = 1, .top_p = 0.9f};
  EXPECT_EQ(drawn(device, {warm, warm, warm, {}}), (std::vector<int32_t>{-1, -1, -1, 777}));
}

// Pearson's statistic of draws against the distribution, which must not exceed what chance gives once in a
// million.
class GpuDraws : public GpuDraw, public testing::WithParamInterface<TokenChoice> {};

TEST_P(GpuDraws, ComeWithTheirProbabilities) {
  const TokenChoice base = GetParam();
  constexpr int64_t kN = 60, kDraws = 5000;
  std::vector<float> values = normals(kN);
  Tensor logits = make_tensor(upload(values.data(), 4 * kN), DType::f32, {1, kN}, device_);
  logits.dims[0] = kDraws;  // the same row for all
  logits.strides[0] = 0;
  std::vector<TokenChoice> choices(kDraws, base);
  for (int64_t i = 0; i < kDraws; ++i) choices[i].place = draw_place(11, i);
  std::vector<double> seen(kN);
  for (const int32_t id : drawn(logits, choices)) ++seen.at(static_cast<size_t>(id));
  double statistic = 0, kept = 0;
  const std::vector<TokenProbability> distribution = token_distribution(values, base);
  for (const TokenProbability& c : distribution) {
    const double expected = c.p * kDraws, difference = seen[static_cast<size_t>(c.id)] - expected;
    statistic += difference * difference / expected;
    kept += seen[static_cast<size_t>(c.id)];
  }
  EXPECT_EQ(kept, kDraws) << "tokens that a filter leaves out";
  const double freedom = static_cast<double>(distribution.size()) - 1;
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom) + 20);
}

INSTANTIATE_TEST_SUITE_P(, GpuDraws,
                         testing::Values(TokenChoice{.temperature = 0.8f},
                                         TokenChoice{.temperature = 1.5f, .top_p = 0.8f},
                                         TokenChoice{.temperature = 1, .top_k = 12},
                                         TokenChoice{.temperature = 1, .top_p = 0.9f, .min_p = 0.1f}));

TEST_F(GpuDraw, ChosenTokensTakeTheirPlaces) {
  const std::vector<int32_t> chosen = {40, 41, 42, -1};
  std::vector<int32_t> ids = {7, -1, -3, 0, -2, -4, 9};
  const Tensor from = make_tensor(upload(chosen.data(), 16), DType::i32, {4}, device_);
  auto* device_ids = static_cast<int32_t*>(upload(ids.data(), 28));
  run(*gpu_, TakeChosen{{device_ids, ids.size()}, from});
  queue_->copy_to_host(ids.data(), device_ids, 28);
  queue_->wait();
  EXPECT_EQ(ids, (std::vector<int32_t>{7, 40, 42, 0, 41, -1, 9}));
}

}  // namespace
}  // namespace atom::ops
