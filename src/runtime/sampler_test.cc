// Sampling rules, with scripted logits.
#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace atom {
namespace {

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

std::map<int32_t, double> distribution(std::vector<float> logits, const SamplingParams& params,
                                       SampleRequest r = {}) {
  r.params = &params;
  std::map<int32_t, double> result;
  for (const TokenProbability& c : sampling_distribution(logits, r)) result[c.id] = c.p;
  return result;
}

int32_t draw(std::vector<float> logits, const SamplingParams& params, SampleRequest r = {}) {
  r.params = &params;
  return sample(logits, r).id;
}

const std::vector<double> kFour = {.4, .3, .2, .1};

TEST(Sampler, TopPKeepsATokenIffTheMassBeforeItIsBelowP) {
  SamplingParams p;
  for (const auto& [top_p, kept] :
       std::map<float, size_t>{{.5f, 2}, {.75f, 3}, {.8f, 3}, {.95f, 4}, {1e-6f, 1}, {1.f, 4}}) {
    p.top_p = top_p;
    EXPECT_EQ(distribution(logits_of(kFour), p).size(), kept) << top_p;
  }
  p.top_p = .5f;
  EXPECT_NEAR(distribution(logits_of(kFour), p)[0], .571428, 1e-5);
  p.top_p = .8f;
  EXPECT_NEAR(distribution(logits_of(kFour), p)[2], .222222, 1e-5);
}

TEST(Sampler, TopPTakesItsMassAfterTopK) {
  SamplingParams p;
  p.top_k = 2;
  p.top_p = .5f;
  EXPECT_EQ(distribution(logits_of(kFour), p).size(), 1u);
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  SamplingParams p;
  p.min_p = .6f;
  EXPECT_EQ(distribution(logits_of(kFour), p).size(), 2u);
}

TEST(Sampler, TopKBeyondTheVocabularyIsOff) {
  SamplingParams p;
  p.top_k = 1000;
  EXPECT_EQ(distribution(logits_of(kFour), p).size(), 4u);
}

TEST(Sampler, TemperatureComesBeforeTopP) {
  SamplingParams p;
  p.temperature = .5f;  // .16 .09 .04 .01 of .30
  p.top_p = .6f;
  const auto d = distribution(logits_of(kFour), p);
  ASSERT_EQ(d.size(), 2u);
  EXPECT_NEAR(d.at(0), .64, 1e-4);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  SamplingParams p;
  std::map<int32_t, int> counts;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) ++counts[draw(logits_of(kFour), p, {.seed = 7, .output_index = i})];
  double chi2 = 0;
  for (int id = 0; id < 4; ++id) {
    const double expected = kDraws * kFour[id];
    chi2 += (counts[id] - expected) * (counts[id] - expected) / expected;
  }
  EXPECT_LT(chi2, 16.27);  // 3 degrees of freedom, p = 0.001
}

TEST(Sampler, RepetitionPenaltyCountsATokenOnceAndMovesTowardsLess) {
  SamplingParams p;
  p.repetition_penalty = 2;
  p.temperature = 0;
  TokenCounts counts;
  const std::vector<int32_t> prompt = {0, 0, 0, 1};
  counts.add_prompt(prompt);
  std::vector<float> logits = {2, -1, .5};
  SampleRequest r{.params = &p, .counts = &counts};
  sampling_distribution(logits, r);
  EXPECT_EQ(logits, (std::vector<float>{1, -2, .5}));
}

TEST(Sampler, PresenceAndFrequencyCountOutputOnly) {
  SamplingParams p;
  p.presence_penalty = .5f;
  p.frequency_penalty = .25f;
  TokenCounts counts;
  const std::vector<int32_t> prompt = {0, 1, 2};
  counts.add_prompt(prompt);
  std::vector<float> unchanged = {1, 1, 1};
  SampleRequest r{.params = &p, .counts = &counts};
  sampling_distribution(unchanged, r);
  EXPECT_EQ(unchanged, (std::vector<float>{1, 1, 1}));
  for (const int32_t id : {0, 0, 0, 1}) counts.add_output(id);
  std::vector<float> logits = {1, 1, 1};
  sampling_distribution(logits, r);
  EXPECT_EQ(logits, (std::vector<float>{-.25f, .25f, 1}));
}

TEST(Sampler, GreedyTakesTheLowestIdOfATieWhateverTheTemperatureCalledZero) {
  SamplingParams p;
  for (const float t : {0.f, 1e-9f}) {
    p.temperature = t;
    EXPECT_EQ(draw({1, 3, 3, 2}, p), 1);
  }
}

TEST(Sampler, NonFiniteLogitsChooseNothing) {
  SamplingParams p;
  for (const float t : {0.f, 1.f}) {
    p.temperature = t;
    EXPECT_EQ(draw({1, std::nanf(""), 2}, p), -1);
    EXPECT_EQ(draw({1, std::numeric_limits<float>::infinity(), 2}, p), -1);
  }
}

TEST(Sampler, PaddedVocabularyRowsAreNeverChosen) {
  SamplingParams p;
  p.temperature = 0;
  EXPECT_EQ(draw({0, 1, 2, 3, 4, 5, 6, 9}, p, {.vocab_limit = 6}), 5);
}

TEST(Sampler, StopTokensAreMaskedBeforeMinTokens) {
  SamplingParams p;
  p.temperature = 0;
  p.min_tokens = 5;
  const std::vector<int32_t> stops = {1, 2, 3};
  EXPECT_EQ(draw({0, 9, 8, 7, 1}, p, {.stop_ids = stops, .output_index = 4}), 4);
  EXPECT_EQ(draw({0, 9, 8, 7, 1}, p, {.stop_ids = stops, .output_index = 5}), 1);
}

TEST(Sampler, LogitBiasForcesAndForbids) {
  SamplingParams p;
  p.temperature = 0;
  p.logit_bias = {{0, 100.f}};
  EXPECT_EQ(draw({0, 5, 1}, p), 0);
  p.logit_bias = {{1, -100.f}};
  EXPECT_EQ(draw({0, 5, 1}, p), 2);
}

TEST(Sampler, LogprobsAreOfTheUnchangedLogitsAndListTheChosenFirst) {
  SamplingParams p;
  p.temperature = 0;
  p.logprobs = 2;
  p.logit_bias = {{3, 100.f}};
  std::vector<float> logits = logits_of(kFour);
  const SampledToken token = sample(logits, {.params = &p});
  ASSERT_EQ(token.top.size(), 3u);
  EXPECT_EQ(token.top[0].id, 3);
  EXPECT_NEAR(token.top[0].logprob, std::log(.1), 1e-5);
  EXPECT_EQ(token.top[1].id, 0);
  EXPECT_EQ(token.top[2].id, 1);
}

TEST(Sampler, TheSameSeedAndPositionGiveTheSameToken) {
  SamplingParams p;
  std::vector<float> flat(64, 0.f);
  std::map<int32_t, int> seen;
  for (int i = 0; i < 100; ++i) {
    const int32_t a = draw(flat, p, {.seed = 42, .output_index = i});
    EXPECT_EQ(a, draw(flat, p, {.seed = 42, .output_index = i}));
    ++seen[a];
  }
  EXPECT_GT(seen.size(), 30u);
}

TEST(SamplingParams, OutOfRangeValuesAreRefusedByName) {
  auto message = [](auto change) {
    SamplingParams p;
    change(p);
    const auto error = validate(p, 100);
    return error ? error->message() : std::string();
  };
  EXPECT_EQ(message([](SamplingParams&) {}), "");
  EXPECT_NE(message([](SamplingParams& p) { p.temperature = -1; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.temperature = std::nanf(""); }).find("temperature"),
            std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.top_p = 0; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.top_p = 1.1f; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.top_k = -1; }).find("top_k"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) {
              p.logit_bias = {{100, 1.f}};
            }).find("logit_bias"),
            std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.stop_ids = {-5}; }).find("stop"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.logprobs = 1000; }).find("logprobs"), std::string::npos);
}

}  // namespace
}  // namespace atom
