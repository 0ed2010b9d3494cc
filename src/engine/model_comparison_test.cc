// Traces made by hand: what the comparison finds and what it holds to be a disagreement.
#include "engine/model_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace atom {
namespace {

constexpr ComparisonLimits kExact{.error = 1e-3, .choices = 0.999, .every = true}, kRounded{.error = 0.1};

// Four rows of three logits, one block that chooses two experts a row, two tokens that follow.
ModelTrace trace() {
  ModelTrace t;
  t.vocab = 3;
  t.logits = {1, 2, -4, 0, 8, 1, 3, 2, 1, 0, 0, 5};
  t.experts["layers.0.mlp"] = {2, {0, 1, 2, 3, 0, 3, 1, 2}};
  t.output = {2, 1};
  t.output_logprobs = {{{2, -0.1f}, {0, -3}}, {{1, -0.5f}, {0, -0.6f}}};
  return t;
}

TEST(ModelComparison, TheSameIsTheSame) {
  const ModelComparison c = compare(trace(), trace());
  EXPECT_EQ(c.rows, 4);
  EXPECT_EQ(c.same_rows, 4);
  EXPECT_EQ(c.worst, 0);
  EXPECT_EQ(c.same_best, 4);
  EXPECT_EQ(c.experts, 8);
  EXPECT_EQ(c.same_experts, 8);
  EXPECT_EQ(c.same_output, 2);
  EXPECT_TRUE(disagreements(c, kExact).empty());
}

TEST(ModelComparison, AnErrorCountsAgainstTheLargestLogitOfItsRow) {
  ModelTrace other = trace();
  other.logits[4] = 7;  // of 8
  const ModelComparison c = compare(trace(), other);
  EXPECT_DOUBLE_EQ(c.worst, 0.125);
  EXPECT_EQ(disagreements(c, kRounded).size(), 1u);
  EXPECT_TRUE(disagreements(c, {.error = 0.126}).empty());
}

TEST(ModelComparison, HalfOfTheRowsMayBeHeldToLess) {
  ModelTrace other = trace();
  other.logits[2] = -3.96f;  // 0.01 of the largest
  other.logits[4] = 8.4f;    // 0.05
  other.logits[6] = 3.15f;   // 0.05
  const ModelComparison c = compare(trace(), other);
  EXPECT_NEAR(c.median, 0.05, 1e-6);
  EXPECT_EQ(c.median_same, c.median);
  EXPECT_TRUE(disagreements(c, {.error = 0.1, .median = 0.06}).empty());
  EXPECT_EQ(disagreements(c, {.error = 0.1, .median = 0.04}).size(), 1u);
  other.experts["layers.0.mlp"].ids[3] = 2;  // row 1: only the row before counts
  EXPECT_TRUE(disagreements(compare(trace(), other), {.error = 0.1, .median = 0.04}).empty());
}

TEST(ModelComparison, ANumberThatIsNoneIsBeyondEveryLimit) {
  ModelTrace other = trace();
  other.logits[7] = std::nanf("");
  const ModelComparison c = compare(trace(), other);
  EXPECT_EQ(c.worst, std::numeric_limits<double>::infinity());
  EXPECT_FALSE(disagreements(c, {.error = 1e9}).empty());
}

TEST(ModelComparison, RowsBehindAnotherChoiceCountOnlyWhereAllIsExact) {
  ModelTrace other = trace();
  other.experts["layers.0.mlp"].ids[5] = 2;  // row 2
  other.logits[8] = 3;                       // row 2, off by 2 of 3
  const ModelComparison c = compare(trace(), other);
  EXPECT_EQ(c.same_rows, 2);
  EXPECT_EQ(c.same_experts, 7);
  EXPECT_TRUE(disagreements(c, kRounded).empty());
  EXPECT_EQ(disagreements(c, kExact).size(), 2u);  // the row, and the choice
}

TEST(ModelComparison, ManyOtherChoicesAreADisagreementAtAnyPrecision) {
  ModelTrace other = trace();
  other.experts["layers.0.mlp"].ids = {0, 1, 1, 4, 0, 3, 1, 2};
  EXPECT_EQ(disagreements(compare(trace(), other), kRounded).size(), 1u);
}

TEST(ModelComparison, PositionsOfARowThatSeesNoMoreThanItWouldChooseAreNotCompared) {
  ModelTrace one = trace(), other = trace();
  one.positions["indexer"] = {2, {9, 9, 9, 9, 0, 2, 1, 3}};
  other.positions["indexer"] = {2, {7, 8, 7, 8, 0, 2, 1, 3}};
  const ModelComparison c = compare(one, other);
  EXPECT_EQ(c.positions, 4);
  EXPECT_EQ(c.same_positions, 4);
  EXPECT_EQ(c.same_rows, 4);
}

TEST(ModelComparison, AnotherTokenIsFineWhereTheTwoWereNear) {
  ModelTrace other = trace();
  other.output[1] = 0;
  const ModelComparison c = compare(trace(), other);
  EXPECT_EQ(c.same_output, 1);
  EXPECT_NEAR(c.output_gap, 0.1, 1e-6);
  EXPECT_TRUE(disagreements(c, {.error = 0.01, .every = true}).empty());  // 2 x 0.01 x 8 = 0.16
  EXPECT_EQ(disagreements(c, kExact).size(), 1u);
  other.output[1] = 2;  // not among the best
  EXPECT_EQ(disagreements(compare(trace(), other), {.error = 0.01, .every = true}).size(), 1u);
}

}  // namespace
}  // namespace atom
