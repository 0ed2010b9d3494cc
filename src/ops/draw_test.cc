// Drawing tokens: the reference, by hand. Its distributions are tested with the sampler's parameters in
// runtime.
#include "ops/draw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace atom::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::map<int32_t, double> distribution(const std::vector<float>& logits, const TokenChoice& choice) {
  std::map<int32_t, double> result;
  for (const TokenProbability& c : token_distribution(logits, choice)) result[c.id] = c.p;
  return result;
}

TEST(DrawTokens, FiltersKeepTheMostLikelyAndAmongEqualsTheLowestIds) {
  const std::vector<float> logits = {0, 1, 1, -kInf, 1, -0.0f};
  EXPECT_EQ(distribution(logits, {.temperature = 1, .top_k = 2}),
            (std::map<int32_t, double>{{1, 0.5}, {2, 0.5}}));
  EXPECT_EQ(distribution(logits, {.temperature = 1, .min_p = 0.9f}).size(), 3u);
  EXPECT_EQ(distribution(logits, {.temperature = 1, .top_k = 4}).count(0),
            1u);  // zeros of either sign are equal
  EXPECT_EQ(distribution(logits, {.temperature = 1, .top_p = 0.01f}), (std::map<int32_t, double>{{1, 1.0}}));
  EXPECT_EQ(distribution(logits, {}), (std::map<int32_t, double>{{1, 1.0}}));
  EXPECT_NEAR(distribution(logits, {.temperature = 0.5f})[0], 1 / (3 * std::exp(2.0) + 2), 1e-12);
}

TEST(DrawTokens, ATokenDependsOnItsPlaceAndLogitsAlone) {
  ThreadPool pool(2);
  Stream stream(pool);
  constexpr int64_t kRows = 40, kColumns = 9;
  std::vector<float> logits(kRows * kColumns, 1.0f);
  logits[7 * kColumns] = std::nanf("");
  std::vector<TokenChoice> choices;
  for (int64_t t = 0; t < kRows; ++t) {
    choices.push_back({.place = draw_place(5, t), .temperature = t % 2 == 0 ? 1.0f : 0.0f});
  }
  std::vector<int32_t> ids(kRows, 77);
  run(stream, DrawTokens{make_tensor(ids.data(), DType::i32, {kRows}),
                         make_tensor(logits.data(), DType::f32, {kRows, kColumns}), choices});
  std::map<int32_t, int> seen;
  for (int64_t t = 0; t < kRows; ++t) {
    const std::span row(&logits[t * kColumns], kColumns);
    EXPECT_EQ(ids[t], draw_token(row, choices[t])) << t;
    if (t % 2 == 1) {
      EXPECT_EQ(ids[t], t == 7 ? -1 : 0);
    }
    if (t % 2 == 0) ++seen[ids[t]];
  }
  EXPECT_GT(seen.size(), 4u) << "of nine equal tokens";
}

TEST(TakeChosen, NegativeIdsNameTheRowsThatChose) {
  ThreadPool pool(1);
  Stream stream(pool);
  std::vector<int32_t> chosen = {40, 41, 42}, ids = {7, -1, -3, 0, -2};
  run(stream, TakeChosen{ids, make_tensor(chosen.data(), DType::i32, {3})});
  EXPECT_EQ(ids, (std::vector<int32_t>{7, 40, 42, 0, 41}));
}

}  // namespace
}  // namespace atom::ops
