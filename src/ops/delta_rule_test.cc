#include "ops/delta_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace atom::ops {
namespace {

std::vector<float> randoms(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

Tensor vector(std::vector<float>& x) {
  return make_tensor(x.data(), DType::f32, {static_cast<int64_t>(x.size())});
}
Tensor matrix(std::vector<float>& x, int64_t cols) {
  return make_tensor(x.data(), DType::f32, {static_cast<int64_t>(x.size()) / cols, cols});
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double limit,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  double scale = 1e-9, worst = 0;
  for (const float x : want) scale = std::max(scale, std::abs(static_cast<double>(x)));
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - want[i]));
    ASSERT_TRUE(std::isfinite(got[i])) << what;
  }
  EXPECT_LE(worst / scale, limit) << what;
}

// One or more sequences through the convolution, each with its own state.
struct ConvCase {
  int64_t channels;
  int32_t kernel;
  std::vector<RecurrentSequence> sequences;
};

TEST(CausalConv, EveryImplementationGivesTheDefinition) {
  ThreadPool pool(2);
  Stream stream(pool);
  for (const ConvCase& c : {ConvCase{5, 4, {{0, 7, 1}}}, ConvCase{300, 4, {{0, 1, 2}, {1, 9, 0}, {10, 2, 1}}},
                            ConvCase{16, 2, {{0, 3, 0}}}, ConvCase{520, 3, {{0, 1, 1}, {1, 1, 0}}}}) {
    const int64_t tokens = c.sequences.back().first_row + c.sequences.back().rows, extra = 3;
    auto x = randoms(tokens * (c.channels + extra), 1), weight = randoms(c.channels * c.kernel, 2);
    const auto before = randoms(3 * (c.kernel - 1) * c.channels, 3);
    for (const Impl<CausalConv>& impl : impls<CausalConv>()) {
      auto state = before;
      std::vector<float> out(tokens * c.channels, -7.0f);
      CausalConv op{matrix(out, c.channels),
                    matrix(x, c.channels + extra),
                    vector(weight),
                    matrix(state, (c.kernel - 1) * c.channels),
                    c.sequences,
                    c.kernel};
      check(op);
      impl.run(stream, op);
      for (const RecurrentSequence& s : c.sequences) {
        for (int64_t channel = 0; channel < c.channels; ++channel) {
          // The whole history of the channel: state, then rows.
          std::vector<double> history;
          for (int i = 0; i < c.kernel - 1; ++i) {
            history.push_back(before[(s.slot * (c.kernel - 1) + i) * c.channels + channel]);
          }
          for (int t = 0; t < s.rows; ++t)
            history.push_back(x[(s.first_row + t) * (c.channels + extra) + channel]);
          for (int t = 0; t < s.rows; ++t) {
            double sum = 0;
            for (int j = 0; j < c.kernel; ++j) sum += weight[channel * c.kernel + j] * history[t + j];
            ASSERT_NEAR(out[(s.first_row + t) * c.channels + channel], sum / (1 + std::exp(-sum)), 1e-5)
                << impl.name;
          }
          for (int i = 0; i < c.kernel - 1; ++i) {
            ASSERT_EQ(state[(s.slot * (c.kernel - 1) + i) * c.channels + channel],
                      static_cast<float>(history[s.rows + i]))
                << impl.name;
          }
        }
      }
    }
  }
}

// A delta rule over `tokens` tokens of one or more sequences.
struct Rule {
  int32_t k_heads, v_heads, k_dim, v_dim;
  std::vector<RecurrentSequence> sequences;
  int64_t tokens() const { return sequences.back().first_row + sequences.back().rows; }
  int64_t qkv_cols() const { return 2 * k_heads * k_dim + v_heads * v_dim; }

  // Runs `impl` (null: the preferred one) and gives the outputs.
  std::vector<float> run(Stream& stream, std::vector<float>& state, const Impl<DeltaRule>* impl) const {
    auto qkv = randoms(tokens() * qkv_cols(), 1);
    auto ab = randoms(tokens() * 2 * v_heads, 2), a_log = randoms(v_heads, 3), dt_bias = randoms(v_heads, 4);
    std::vector<float> out(tokens() * v_heads * v_dim, -7.0f);
    const Tensor gates = matrix(ab, 2 * v_heads);
    DeltaRule op{matrix(out, v_heads * v_dim),
                 matrix(qkv, qkv_cols()),
                 gates.cols(0, v_heads),
                 gates.cols(v_heads, v_heads),
                 vector(a_log),
                 vector(dt_bias),
                 matrix(state, int64_t{v_heads} * k_dim * v_dim),
                 sequences,
                 k_heads,
                 v_heads,
                 k_dim,
                 v_dim};
    check(op);
    impl == nullptr ? ops::run(stream, op) : impl->run(stream, op);
    return out;
  }
  std::vector<float> fresh_state(uint32_t seed) const { return randoms(3 * v_heads * k_dim * v_dim, seed); }
};

TEST(CausalConv, DroppedRowsAreComputedAndLeaveNoTrace) {
  ThreadPool pool(2);
  Stream stream(pool);
  constexpr int64_t kChannels = 5, kRows = 4;
  auto x = randoms(kRows * kChannels, 1), weight = randoms(kChannels * 4, 2);
  const auto before = randoms(3 * kChannels, 3);
  for (const Impl<CausalConv>& impl : impls<CausalConv>()) {
    for (int32_t kept = 0; kept <= kRows; ++kept) {
      auto run = [&](RecurrentSequence s, std::vector<float>& state, std::vector<float>& out) {
        const CausalConv op{matrix(out, kChannels).rows(0, s.rows), matrix(x, kChannels).rows(0, s.rows),
                            vector(weight), matrix(state, 3 * kChannels), {&s, 1}, 4};
        impl.run(stream, op);
      };
      std::vector<float> want(kRows * kChannels), out(kRows * kChannels), partial(kRows * kChannels);
      auto whole = before, state = before, expected = before;
      run({0, kRows, 0}, whole, want);
      run({0, kRows, 0, static_cast<int32_t>(kRows) - kept}, state, out);
      if (kept > 0) run({0, kept, 0}, expected, partial);
      EXPECT_EQ(out, want) << impl.name;
      EXPECT_EQ(state, expected) << impl.name << " kept " << kept;
    }
  }
}

TEST(DeltaRule, EveryImplementationAgreesWithTheReference) {
  ThreadPool pool(2);
  Stream stream(pool);
  for (const Rule& rule :
       {Rule{1, 1, 8, 8, {{0, 5, 0}}}, Rule{2, 4, 16, 8, {{0, 1, 2}, {1, 70, 0}, {71, 3, 1}}},
        Rule{1, 3, 7, 5, {{0, 20, 1}}}, Rule{2, 2, 128, 128, {{0, 130, 0}}},
        Rule{1, 2, 32, 72, {{0, 9, 0}, {9, 64, 2}}}}) {
    auto reference_state = rule.fresh_state(9);
    const auto want = rule.run(stream, reference_state, &impls<DeltaRule>().back());
    for (const Impl<DeltaRule>& impl : impls<DeltaRule>()) {
      if (impl.refuse(stream, {}) != nullptr) continue;
      auto state = rule.fresh_state(9);
      expect_near(rule.run(stream, state, &impl), want, 2e-6, impl.name);
      expect_near(state, reference_state, 2e-6, impl.name);
    }
  }
}

// Worked by hand: one head of one lane, S = 0.5, k = q = 1 (normalised), no decay worth the name.
TEST(DeltaRule, TheReferenceFollowsTheRecurrence) {
  ThreadPool pool(1);
  Stream stream(pool);
  std::vector<float> qkv = {3, 2, 5}, a = {-40}, b = {0}, zero = {0}, state = {0.5f}, out = {0};
  const RecurrentSequence sequence{0, 1, 0};
  DeltaRule op{matrix(out, 1),
               matrix(qkv, 3),
               matrix(a, 1),
               matrix(b, 1),
               vector(zero),
               vector(zero),
               matrix(state, 1),
               {&sequence, 1},
               1,
               1,
               1,
               1};
  impls<DeltaRule>().back().run(stream, op);
  EXPECT_NEAR(state[0], 0.5 + 0.5 * (5 - 0.5), 1e-5);  // beta = sigmoid(0) = 0.5
  EXPECT_NEAR(out[0], 2.75, 1e-5);
}

TEST(DeltaRule, AnyCutOfASequenceGivesTheSameOutputsAndState) {
  ThreadPool pool(2);
  Stream stream(pool);
  const Rule whole{2, 6, 32, 16, {{0, 100, 1}}};
  auto state = whole.fresh_state(5);
  const auto want = whole.run(stream, state, nullptr);
  for (const std::vector<int32_t>& cut : {std::vector<int32_t>{1, 1, 1, 97}, {64, 36}, {63, 2, 35}}) {
    auto qkv = randoms(whole.tokens() * whole.qkv_cols(), 1);
    auto ab = randoms(whole.tokens() * 2 * whole.v_heads, 2);
    auto a_log = randoms(whole.v_heads, 3), dt_bias = randoms(whole.v_heads, 4);
    auto cut_state = whole.fresh_state(5);
    std::vector<float> out(want.size());
    int64_t row = 0;
    for (const int32_t rows : cut) {
      const RecurrentSequence part{0, rows, 1};
      const Tensor gates = matrix(ab, 2 * whole.v_heads).rows(row, rows);
      run(stream, DeltaRule{matrix(out, whole.v_heads * whole.v_dim).rows(row, rows),
                            matrix(qkv, whole.qkv_cols()).rows(row, rows),
                            gates.cols(0, whole.v_heads),
                            gates.cols(whole.v_heads, whole.v_heads),
                            vector(a_log),
                            vector(dt_bias),
                            matrix(cut_state, int64_t{whole.v_heads} * whole.k_dim * whole.v_dim),
                            {&part, 1},
                            whole.k_heads,
                            whole.v_heads,
                            whole.k_dim,
                            whole.v_dim});
      row += rows;
    }
    EXPECT_EQ(out, want);
    EXPECT_EQ(cut_state, state);
  }
}

// Rows that may be taken back: computed like any, but the state stands as if only the others had come.
TEST(DeltaRule, DroppedRowsAreComputedAndLeaveNoTrace) {
  ThreadPool pool(2);
  Stream stream(pool);
  for (const Impl<DeltaRule>& impl : impls<DeltaRule>()) {
    if (impl.refuse(stream, {}) != nullptr) continue;
    // A shorter run draws the same numbers, so it has the first rows of the longer one.
    for (const int32_t kept : {0, 1, 64, 69, 70}) {
      const Rule whole{1, 2, 16, 8, {{0, 70, 1}}};
      auto state = whole.fresh_state(5), expected = whole.fresh_state(5);
      const auto want = whole.run(stream, state, &impl);
      Rule dropping = whole;
      dropping.sequences[0].dropped = 70 - kept;
      auto after = whole.fresh_state(5);
      expect_near(dropping.run(stream, after, &impl), want, 1e-6, impl.name);
      Rule shorter = whole;
      shorter.sequences[0].rows = kept;
      if (kept > 0) shorter.run(stream, expected, &impl);
      expect_near(after, expected, 1e-6, impl.name);
    }
  }
}

TEST(GatedRmsNorm, IsTheWorkedExample) {
  ThreadPool pool(1);
  Stream stream(pool);
  std::vector<float> x = {3, 4}, gate = {1, -1}, weight = {1, 1};
  run(stream, GatedRmsNorm{matrix(x, 2), matrix(gate, 2), vector(weight), 1e-6f});
  EXPECT_NEAR(x[0], 0.6203238, 1e-6);
  EXPECT_NEAR(x[1], -0.3042725, 1e-6);
}

TEST(GatedRmsNorm, NormalisesEachHeadAlone) {
  ThreadPool pool(2);
  Stream stream(pool);
  auto x = randoms(6 * 12, 1), gate = randoms(6 * 14, 2), weight = randoms(4, 3);
  const auto before = x;
  run(stream, GatedRmsNorm{matrix(x, 12), matrix(gate, 14).cols(0, 12), vector(weight), 1e-6f});
  for (int t = 0; t < 6; ++t) {
    for (int i = 0; i < 12; ++i) {
      double squares = 0;
      for (int j = 0; j < 4; ++j) squares += std::pow(before[t * 12 + i / 4 * 4 + j], 2);
      const double z = gate[t * 14 + i];
      EXPECT_NEAR(x[t * 12 + i],
                  before[t * 12 + i] / std::sqrt(squares / 4 + 1e-6) * weight[i % 4] * z / (1 + std::exp(-z)),
                  1e-5);
    }
  }
}

TEST(SigmoidGate, ScalesByTheSigmoid) {
  ThreadPool pool(1);
  Stream stream(pool);
  std::vector<float> x = {2, -3, 1}, gate = {0, 100, -100};
  run(stream, SigmoidGate{matrix(x, 3), matrix(gate, 3)});
  EXPECT_FLOAT_EQ(x[0], 1);
  EXPECT_FLOAT_EQ(x[1], -3);
  EXPECT_NEAR(x[2], 0, 1e-30);
}

}  // namespace
}  // namespace atom::ops
