// Speculation changes no token and no distribution.
#include "runtime/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "text/ebnf_grammar.h"
#include "text/grammar_test_util.h"

namespace atom {
namespace {

using Rows = std::vector<std::vector<float>>;

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// The target's logits after `tokens`: a small random language in which every place depends on the two tokens before.
std::vector<float> target_after(const std::vector<int32_t>& tokens, int64_t vocab, double scale = 1.5) {
  uint32_t seed = 17;
  for (size_t i = tokens.size() - std::min<size_t>(2, tokens.size()); i < tokens.size(); ++i) {
    seed = seed * 31 + static_cast<uint32_t>(tokens[i]);
  }
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> logits(vocab);
  for (float& x : logits) x = static_cast<float>(scale) * normal(rng);
  return logits;
}

// The drafter's, which are near the target's.
std::vector<float> draft_after(const std::vector<int32_t>& tokens, int64_t vocab, double error) {
  std::vector<float> logits = target_after(tokens, vocab);
  std::mt19937 rng(static_cast<uint32_t>(tokens.size()) * 7919 + 1);
  std::normal_distribution<float> normal;
  for (float& x : logits) x += static_cast<float>(error) * normal(rng);
  return logits;
}

Tensor matrix(std::vector<float>& values, int64_t cols) {
  return make_tensor(values.data(), DType::f32, {static_cast<int64_t>(values.size()) / cols, cols});
}

struct Generated {
  std::vector<int32_t> tokens;
  int64_t drafted = 0, right = 0;
};

// Generates with k drafts a step: those of the drafter, or what `wrong` makes of them.
Generated generate(const SamplingParams& params, const std::vector<int32_t>& stop_ids, int64_t k, int64_t length,
                   int64_t vocab, double error = 0.3, bool random_drafts = false) {
  Generated result;
  std::mt19937 random(static_cast<uint32_t>(k));
  TokenCounts counts;
  const bool counted = params.repetition_penalty != 1 || params.presence_penalty != 0;
  while (static_cast<int64_t>(result.tokens.size()) < length) {
    const SampleRequest request{.params = &params,
                                .counts = counted ? &counts : nullptr,
                                .stop_ids = stop_ids,
                                .seed = params.seed.value_or(0),
                                .output_index = static_cast<int64_t>(result.tokens.size())};
    SampledSequence drafting(request), verifying(request);
    std::vector<int32_t> drafts, after = result.tokens;
    std::vector<float> rows = target_after(after, vocab);
    for (int64_t i = 0; i < k; ++i) {
      std::vector<float> logits = draft_after(after, vocab, error);
      drafts.push_back(random_drafts ? static_cast<int32_t>(random() % vocab) : drafting.choose(logits));
      drafting.append(drafts.back());
      after.push_back(drafts.back());
      const std::vector<float> row = target_after(after, vocab);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const std::vector<SampledToken> tokens = verify(verifying, matrix(rows, vocab), drafts);
    result.drafted += k;
    result.right += static_cast<int64_t>(tokens.size()) - 1;
    for (const SampledToken& token : tokens) {
      result.tokens.push_back(token.id);
      counts.add_output(token.id);
      if (std::ranges::find(stop_ids, token.id) != stop_ids.end()) return result;
    }
  }
  result.tokens.resize(length);
  return result;
}

TEST(Verify, AnyDraftsOfAnyNumberGiveTheTokensOfNone) {
  std::vector<SamplingParams> all(6);
  all[0].temperature = 0;
  all[1].temperature = 0.8f;
  all[2].temperature = 1.2f, all[2].top_k = 7, all[2].top_p = .9f;
  all[3].temperature = 0, all[3].repetition_penalty = 1.3f, all[3].presence_penalty = .4f;
  all[4].temperature = 1, all[4].repetition_penalty = 1.2f, all[4].frequency_penalty = .3f, all[4].min_p = .05f;
  all[5].temperature = .9f, all[5].logit_bias = {{3, 2.f}, {5, -100.f}}, all[5].min_tokens = 30;
  for (SamplingParams& params : all) {
    params.seed = 5;
    const std::vector<int32_t> stops = {11};
    const Generated plain = generate(params, stops, 0, 80, 24);
    for (int64_t k = 1; k <= 4; ++k) {
      for (const bool random_drafts : {false, true}) {
        EXPECT_EQ(generate(params, stops, k, 80, 24, 0.3, random_drafts).tokens, plain.tokens)
            << "k " << k << " temperature " << params.temperature << " random " << random_drafts;
      }
    }
  }
}

TEST(Verify, DraftsFromTheTargetItselfAreAlwaysRight) {
  SamplingParams params;
  params.seed = 3;
  for (const float t : {0.f, 1.f}) {
    params.temperature = t;
    const Generated g = generate(params, {}, 4, 100, 32, 0);
    EXPECT_EQ(g.right, g.drafted);
  }
}

// Over seeds, the tokens at each place are distributed as the target says: a chi-square over the joint distribution
// of the first three tokens, of which two are drafts.
TEST(Verify, WhatIsSampledFollowsTheTargetAtAnyTemperature) {
  constexpr int64_t kVocab = 3, kDraws = 100000;
  for (const float temperature : {.7f, 1.f, 1.5f}) {
    SamplingParams params;
    params.temperature = temperature;
    std::vector<double> seen(27);
    for (int64_t draw = 0; draw < kDraws; ++draw) {
      params.seed = static_cast<uint64_t>(draw) * 0x9E3779B97F4A7C15ull;
      const std::vector<int32_t> t = generate(params, {}, 2, 3, kVocab, 0.8).tokens;
      ++seen[t[0] * 9 + t[1] * 3 + t[2]];
    }
    const auto probability = [&](const std::vector<int32_t>& before, int32_t token) {
      std::vector<float> logits = target_after(before, kVocab);
      double total = 0;
      for (float& x : logits) total += std::exp(x / temperature);
      return std::exp(logits[token] / temperature) / total;
    };
    double chi2 = 0;
    int cells = 0;
    for (int32_t a = 0; a < 3; ++a) {
      for (int32_t b = 0; b < 3; ++b) {
        for (int32_t c = 0; c < 3; ++c) {
          const double expected = kDraws * probability({}, a) * probability({a}, b) * probability({a, b}, c);
          if (expected < 5) continue;
          chi2 += (seen[a * 9 + b * 3 + c] - expected) * (seen[a * 9 + b * 3 + c] - expected) / expected;
          ++cells;
        }
      }
    }
    EXPECT_GT(cells, 15);
    EXPECT_LT(chi2, 54.05) << "temperature " << temperature;  // 26 degrees of freedom, p = 0.001
  }
}

// p = [.6 .3 .1], q = [.2 .5 .3]: rejection sampling accepts 1 - |p - q| / 2 = .6. Two exponential races with the same
// noise agree with probability sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) = 1/5 + 1/3.6 + 1/10.
TEST(Verify, DraftsAreAcceptedAsOftenAsSharedNoiseAllows) {
  const std::vector<double> p = {.6, .3, .1}, q = {.2, .5, .3};
  SamplingParams params;
  constexpr int kDraws = 100000;
  int right = 0;
  std::vector<double> seen(3);
  for (int i = 0; i < kDraws; ++i) {
    const SampleRequest request{.params = &params, .seed = 99, .output_index = i};
    SampledSequence drafting(request), verifying(request);
    std::vector<float> draft = logits_of(q), rows = logits_of(p), more = logits_of(p);
    rows.insert(rows.end(), more.begin(), more.end());
    const std::vector<int32_t> drafts = {drafting.choose(draft)};
    const auto tokens = verify(verifying, matrix(rows, 3), drafts);
    right += tokens.size() == 2;
    ++seen[tokens.front().id];
  }
  EXPECT_NEAR(right / double{kDraws}, 1 / 5. + 1 / 3.6 + 1 / 10., 0.006);
  for (int id = 0; id < 3; ++id) EXPECT_NEAR(seen[id] / kDraws, p[id], 0.006);
}

TEST(Verify, ADraftThatOneSideCannotHaveIsOnlyWrong) {
  SamplingParams params;
  for (int i = 0; i < 200; ++i) {
    const SampleRequest request{.params = &params, .seed = 1, .output_index = i};
    SampledSequence verifying(request);
    std::vector<float> rows = logits_of({.5, .5, 0, .5, .5, 0});
    const auto tokens = verify(verifying, matrix(rows, 3), std::vector<int32_t>{2});
    ASSERT_EQ(tokens.size(), 1u);
    EXPECT_NE(tokens[0].id, 2);
  }
}

TEST(Verify, ATokenThatEndsTheSequenceEndsTheList) {
  SamplingParams params;
  params.temperature = 0;
  const std::vector<int32_t> stops = {1};
  const SampleRequest request{.params = &params, .stop_ids = stops};
  std::vector<float> rows = {9, 0, 0, 0, 9, 0, 0, 0, 9};
  SampledSequence sequence(request);
  const auto tokens = verify(sequence, matrix(rows, 3), std::vector<int32_t>{0, 1});
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[1].id, 1);
}

TEST(Verify, LogitsThatAreNotFiniteEndTheListBeforeThem) {
  SamplingParams params;
  params.temperature = 0;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> rows = {9, 0, 0, nan};
  SampledSequence sequence({.params = &params});
  const auto tokens = verify(sequence, matrix(rows, 2), std::vector<int32_t>{0});
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_EQ(tokens[0].id, 0);
  std::vector<float> first = {nan, 0, 0, 0};
  SampledSequence other({.params = &params});
  const auto none = verify(other, matrix(first, 2), std::vector<int32_t>{0});
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].id, -1);
}

TEST(Verify, ATokenThatTheGrammarCannotFollowEndsTheList) {
  const std::vector<std::string_view> texts = {"x", "Q"};
  TokenConstraint constraint(std::make_shared<text::GrammarMasks>(
      text::ebnf_grammar(text::too_ambiguous()).take(), std::make_shared<text::TokenTrie>(texts)));
  SamplingParams params;
  params.temperature = 0;
  const SampleRequest request = {.params = &params, .constraint = &constraint};
  std::vector<float> rows = {9, 0, 0, 9};
  SampledSequence sequence(request);
  const auto tokens = verify(sequence, matrix(rows, 2), std::vector<int32_t>{0});
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_EQ(tokens[0].id, 0);
  constraint.keep(1);
  EXPECT_EQ(constraint.problem({}), "");
  std::vector<float> row = {9, 9};
  SampledSequence next(request);
  const auto none = verify(next, matrix(row, 2), {});
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].id, -1);
  EXPECT_EQ(constraint.problem({}), "the grammar has too many readings of the text");
}

TEST(Verify, EveryTokenHasItsLogprobs) {
  SamplingParams params;
  params.temperature = 0;
  params.logprobs = 1;
  std::vector<float> rows = {9, 0, 0, 9};
  SampledSequence sequence({.params = &params});
  const auto tokens = verify(sequence, matrix(rows, 2), std::vector<int32_t>{0});
  ASSERT_EQ(tokens.size(), 2u);
  for (const SampledToken& token : tokens) {
    ASSERT_EQ(token.top.size(), 2u);
    EXPECT_EQ(token.top[0].id, token.id);
    EXPECT_NEAR(token.top[0].logprob, -std::log1p(std::exp(-9.)), 1e-5);
  }
}

}  // namespace
}  // namespace atom
