// Routing by worked examples, and the experts' fast entry against the reference.
#include "ops/moe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>
#include <vector>

#include "ops/cpu/moe_cpu.h"

namespace atom::ops {
namespace {

ThreadPool& pool() {
  static ThreadPool instance(2);
  return instance;
}

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// Routes one token; `op` holds what is not a tensor.
Routed route(RouteExperts op, std::vector<float> logits, int64_t k, std::vector<float> correction = {}) {
  Routed out{std::vector<int32_t>(k, -1), std::vector<float>(k, NAN)};
  const int64_t experts = static_cast<int64_t>(logits.size());
  op.ids = make_tensor(out.ids.data(), DType::i32, {1, k});
  op.weights = make_tensor(out.weights.data(), DType::f32, {1, k});
  op.logits = make_tensor(logits.data(), DType::f32, {1, experts});
  if (!correction.empty()) op.correction = make_tensor(correction.data(), DType::f32, {experts});
  Stream stream(pool());
  run(stream, op);
  return out;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
}

TEST(Router, SoftmaxOverAllKeepsItsValuesUnlessRenormalised) {
  const Routed raw = route({}, {2, 1, 0, -1}, 2);
  EXPECT_EQ(raw.ids, (std::vector<int32_t>{0, 1}));
  expect_near(raw.weights, {0.64391426f, 0.23688282f});
  expect_near(route({.renormalize = true}, {2, 1, 0, -1}, 2).weights, {0.73105858f, 0.26894142f});
  expect_near(route({.score = RouterScore::softmax_chosen}, {2, 1, 0, -1}, 2).weights,
              {0.73105858f, 0.26894142f});
}

TEST(Router, OneExpertWeighsExactlyOneWhenRenormalised) {
  EXPECT_EQ(route({.renormalize = true}, {2, 1, 0, -1}, 1).weights.front(), 1.0f);
  EXPECT_EQ(route({.score = RouterScore::softmax_chosen}, {2, 1, 0, -1}, 1).weights.front(), 1.0f);
  expect_near(route({}, {2, 1, 0, -1}, 1).weights, {0.64391426f});
}

TEST(Router, EqualExpertsAreTakenFromTheLowestId) {
  for (const RouterScore score : {RouterScore::softmax, RouterScore::softmax_chosen, RouterScore::sigmoid}) {
    EXPECT_EQ(route({.score = score}, {1, 1, 1, 1}, 2).ids, (std::vector<int32_t>{0, 1}));
  }
}

TEST(Router, GroupsScoreTheirTwoBest) {
  const RouteExperts op{.score = RouterScore::sigmoid, .groups = 4, .top_groups = 2};
  const Routed r = route(op, {2, -3, 1.2f, 1.1f, 1, 0.9f, -1, -1}, 3, std::vector<float>(8, 0));
  EXPECT_EQ(r.ids, (std::vector<int32_t>{2, 3, 4}));
  expect_near(r.weights, {0.768525f, 0.750260f, 0.731059f});
}

TEST(Router, ExpertsOfOtherGroupsCannotBeChosenEvenWhenAllScoresAreNegative) {
  const RouteExperts op{.score = RouterScore::sigmoid, .groups = 2, .top_groups = 1, .renormalize = true};
  const Routed r = route(op, {0, 0.5f, 1, 1.5f}, 2, {-2, -2, -3, -3});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 0}));
  expect_near(r.weights, {0.554550f, 0.445450f});
}

TEST(Router, CorrectionChangesTheChoiceButNotTheWeights) {
  const RouteExperts op{.score = RouterScore::sigmoid};
  const float tiny = std::log(1e-8f);  // sigmoid 1e-8, lost beside a bias of 12 in float32
  const Routed r = route(op, {1, tiny, 0}, 1, {0, 12, 0});
  EXPECT_EQ(r.ids.front(), 1);
  EXPECT_NEAR(r.weights.front() / 1e-8f, 1, 1e-5);
  const std::vector<float> logits{0.3f, -1, 2, 0.7f};
  const Routed plain = route(op, logits, 2), shifted = route(op, logits, 2, std::vector<float>(4, 8));
  EXPECT_EQ(plain.ids, shifted.ids);
  EXPECT_EQ(plain.weights, shifted.weights);
}

TEST(Router, ScaleComesAfterRenormalisation) {
  const RouteExperts op{.score = RouterScore::sigmoid, .renormalize = true, .scale = 2.5f};
  const Routed r = route(op, {0, 0.5f}, 2);
  EXPECT_NEAR(r.weights[0] + r.weights[1], 2.5f, 1e-6);
}

TEST(Router, NotANumberStillGivesDistinctExperts) {
  const Routed r = route({}, {NAN, 1, NAN, 2}, 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(r.ids[i] >= 0 && r.ids[i] < 4);
    for (int j = 0; j < i; ++j) EXPECT_NE(r.ids[i], r.ids[j]);
  }
}

// Random experts of one rank and what goes through them.
struct Experts {
  Experts(int64_t tokens, int64_t k, int64_t experts, int64_t first, int64_t local, DType type, bool biased)
      : rng(static_cast<uint32_t>(tokens * 131 + k)) {
    x = floats({tokens, kHidden}, 1);
    weights = floats({tokens, k}, 1);
    ids_data.resize(tokens * k);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t n = 0; n < k; ++n)
        ids_data[t * k + n] = static_cast<int32_t>((t * 5 + n * 2 + t * t) % experts);
    }
    for (int64_t e = 0; e < local; ++e) {
      gate_parts.push_back({{matrix(type, kInter, kHidden), {}}, {matrix(type, kInter, kHidden), {}}});
      down_parts.push_back({{matrix(type, kHidden, kInter), {}}});
      if (!biased) continue;
      gate_up_bias.push_back(floats({2 * kInter}, 1));
      down_bias.push_back(floats({kHidden}, 1));
    }
    for (int64_t e = 0; e < local; ++e) {
      gate_up.push_back({gate_parts[e], 2 * kInter, kHidden});
      down.push_back({down_parts[e], kHidden, kInter});
    }
    op = {.x = x,
          .ids = make_tensor(ids_data.data(), DType::i32, {tokens, k}),
          .weights = weights,
          .gate_up = gate_up,
          .down = down,
          .gate_up_bias = gate_up_bias,
          .down_bias = down_bias,
          .first_expert = first,
          .limit = 1,
          .alpha = 1.702f};
  }

  Tensor floats(std::vector<int64_t> shape, float scale) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    auto& data = memory.emplace_back(n * 4);
    auto* p = reinterpret_cast<float*>(data.data());
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n; ++i) p[i] = scale * normal(rng);
    return make_tensor(p, DType::f32, shape);
  }
  Tensor matrix(DType type, int64_t rows, int64_t cols) {
    const Tensor f = floats({rows, cols}, 0.2f);
    if (type == DType::f32) return f;
    auto& data = memory.emplace_back(rows * cols * 2);
    auto* p = reinterpret_cast<uint16_t*>(data.data());
    for (int64_t i = 0; i < rows * cols; ++i) p[i] = f32_to_bf16(f.as<float>()[i]);
    return make_tensor(p, type, {rows, cols});
  }

  static constexpr int64_t kHidden = 48, kInter = 20;
  std::mt19937 rng;
  std::deque<std::vector<uint8_t>> memory;
  std::vector<int32_t> ids_data;
  std::vector<std::vector<WeightPart>> gate_parts, down_parts;
  std::vector<Weight> gate_up, down;
  std::vector<Tensor> gate_up_bias, down_bias;
  Tensor x, weights;
  MoeExperts op;
};

TEST(MoeExperts, GroupedTokensGiveWhatOneTokenAtATimeGives) {
  Stream stream(pool());
  struct Case {
    int64_t tokens, k, experts, first, local;
  };
  for (const Case& c :
       {Case{1, 2, 8, 0, 8}, {3, 4, 8, 0, 8}, {70, 3, 8, 2, 3}, {300, 4, 5, 0, 5}, {2, 1, 8, 6, 2}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const bool biased : {false, true}) {
        Experts experts(c.tokens, c.k, c.experts, c.first, c.local, type, biased);
        for (const ExpertActivation activation : {ExpertActivation::silu, ExpertActivation::clamped_swiglu}) {
          MoeExperts op = experts.op;
          op.activation = activation;
          op.accumulate = biased;
          std::vector<float> want(c.tokens * Experts::kHidden, 0.5f), got = want;
          op.out = make_tensor(want.data(), DType::f32, {c.tokens, Experts::kHidden});
          moe_experts_ref(stream, op);
          op.out = make_tensor(got.data(), DType::f32, {c.tokens, Experts::kHidden});
          run(stream, op);
          for (size_t i = 0; i < want.size(); ++i)
            ASSERT_NEAR(got[i], want[i], 2e-5) << i << " of " << c.tokens;
        }
      }
    }
  }
}

TEST(MoeExperts, RanksWithDifferentExpertsAddUpToAllExperts) {
  Stream stream(pool());
  Experts all(9, 3, 6, 0, 6, DType::f32, true);
  std::vector<float> whole(9 * Experts::kHidden), sum(whole.size());
  all.op.out = make_tensor(whole.data(), DType::f32, {9, Experts::kHidden});
  run(stream, all.op);
  for (const auto& [first, count] : {std::pair{0, 4}, {4, 2}}) {
    MoeExperts op = all.op;
    op.first_expert = first;
    op.gate_up = op.gate_up.subspan(first, count);
    op.down = op.down.subspan(first, count);
    op.gate_up_bias = op.gate_up_bias.subspan(first, count);
    op.down_bias = op.down_bias.subspan(first, count);
    op.out = make_tensor(sum.data(), DType::f32, {9, Experts::kHidden});
    op.accumulate = true;
    run(stream, op);
  }
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], whole[i], 2e-5);
}

// Experts whose outputs are 10 and 20 with weights 0.6 and 0.4, and a shared output of 5.
float combined(float scale, bool gated) {
  Stream stream(pool());
  float x = 1, out = 5, weights[] = {0.6f * scale, 0.4f * scale}, zero = 0;
  int32_t ids[] = {1, 0};
  const float silu = 1 / (1 + std::exp(-1.0f));
  float gate_up[] = {1, 1 / silu}, down[] = {20, 10};
  const WeightPart up_part{make_tensor(gate_up, DType::f32, {2, 1}), {}};
  const WeightPart down_parts[] = {{make_tensor(&down[0], DType::f32, {1, 1}), {}},
                                   {make_tensor(&down[1], DType::f32, {1, 1}), {}}};
  const Weight ups[] = {{{&up_part, 1}, 2, 1}, {{&up_part, 1}, 2, 1}};
  const Weight downs[] = {{{&down_parts[0], 1}, 1, 1}, {{&down_parts[1], 1}, 1, 1}};
  const Tensor y = make_tensor(&out, DType::f32, {1, 1});
  if (gated) run(stream, SigmoidScale{y, make_tensor(&zero, DType::f32, {1, 1})});
  run(stream, MoeExperts{.out = y,
                         .x = make_tensor(&x, DType::f32, {1, 1}),
                         .ids = make_tensor(ids, DType::i32, {1, 2}),
                         .weights = make_tensor(weights, DType::f32, {1, 2}),
                         .gate_up = ups,
                         .down = downs,
                         .accumulate = true});
  return out;
}

TEST(MoeExperts, ScaleReachesTheRoutedExpertsOnceAndTheSharedOneNever) {
  EXPECT_NEAR(combined(2.5f, false), 40, 1e-4);
  EXPECT_NEAR(combined(1, true), 16.5, 1e-4);
}

}  // namespace
}  // namespace atom::ops
