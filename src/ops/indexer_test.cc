// The sparse-attention indexer: what it stores, which positions it chooses, and in what memory order.
#include "ops/indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "ops/cpu/index_select.h"

namespace atom::ops {
namespace {

Tensor matrix(std::vector<float>& x, int64_t cols) {
  return make_tensor(x.data(), DType::f32, {static_cast<int64_t>(x.size()) / cols, cols});
}

std::vector<float> rotated(bool interleaved) {
  std::vector<float> q = {1, 2, 3, 4}, k = {1, 2, 3, 4}, weight(4, 1), bias(4), cache(2 * 4);
  std::vector<float> cos = {std::cos(1.0f), std::cos(0.01f)}, sin = {std::sin(1.0f), std::sin(0.01f)};
  const int32_t table[] = {0};
  const AttentionSequence sequence{0, 1, 1, table};
  const AttentionBatch batch{{&sequence, 1}, 2, 1};
  ThreadPool pool(1);
  Stream stream(pool);
  run(stream, IndexStore{.q = matrix(q, 4),
                         .k = matrix(k, 4),
                         .norm_weight = make_tensor(weight.data(), DType::f32, {4}),
                         .norm_bias = make_tensor(bias.data(), DType::f32, {4}),
                         .cache = make_tensor(cache.data(), DType::f32, {1, 1, 2, 4}),
                         .batch = &batch,
                         .rope = {matrix(cos, 2), matrix(sin, 2)},
                         .shape = {1, 4, 4},
                         .rope_interleaved = interleaved,
                         .norm_eps = 1e-6f});
  return q;
}

TEST(Indexer, RotatesHalvesOrPairs) {
  const float half_split[] = {-1.98411065f, 1.95990067f, 2.46237790f, 4.01979967f};
  const float interleaved[] = {-1.14263966f, 1.92207560f, 2.95985067f, 4.02979950f};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(rotated(false)[i], half_split[i], 1e-6);
    EXPECT_NEAR(rotated(true)[i], interleaved[i], 1e-6);
  }
}

TEST(Indexer, EqualScoresGoToTheLowestPositions) {
  const std::vector<float> scores = {0, 3, -1, 3, 0, 5, -0.0f, 3};
  for (size_t k = 1; k <= scores.size(); ++k) {
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    order.resize(k);
    std::sort(order.begin(), order.end());
    std::vector<int32_t> best(k);
    cpu::best_positions(scores, best);
    EXPECT_EQ(best, order) << k;
  }
}

TEST(Indexer, EveryImplementationChoosesTheBestOfTheWholeContext) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  const IndexShape shape{6, 20, 8};
  const int32_t block_size = 8, blocks = 60, tokens = 5, k = 7;
  auto numbers = [&](int64_t n) {
    std::vector<float> x(n);
    for (float& v : x) v = normal(rng);
    return x;
  };
  std::vector<float> keys = numbers(blocks * block_size * shape.head_dim);
  std::vector<float> q = numbers(tokens * shape.heads * shape.head_dim),
                     weights = numbers(tokens * shape.heads);
  std::vector<int32_t> tables[2];
  for (int32_t b = 0; b < 40; ++b) tables[0].push_back(blocks - 1 - b);
  tables[1] = {1, 0};
  // One row far into a context of several tiles, and a prompt whose first rows have nothing to choose.
  const std::vector<AttentionSequence> sequences = {{0, 1, 311, tables[0].data()},
                                                    {1, 4, 5, tables[1].data()}};
  const AttentionBatch batch{sequences, block_size, tokens};
  std::vector<int32_t> want(tokens * k, -7);
  for (const AttentionSequence& s : sequences) {
    for (int32_t r = 0; r < s.rows; ++r) {
      const int32_t position = s.context + r, t = s.first_row + r;
      if (position < k) continue;
      std::vector<std::pair<double, int32_t>> scored;
      for (int32_t u = 0; u <= position; ++u) {
        const float* key =
            &keys[(s.block_table[u / block_size] * block_size + u % block_size) * shape.head_dim];
        double score = 0;
        for (int32_t h = 0; h < shape.heads; ++h) {
          double dot = 0;
          for (int32_t d = 0; d < shape.head_dim; ++d)
            dot += q[(t * shape.heads + h) * shape.head_dim + d] * key[d];
          score += weights[t * shape.heads + h] * std::max(0.0, dot);
        }
        scored.emplace_back(-score, u);
      }
      std::sort(scored.begin(), scored.end());
      for (int32_t i = 0; i < k; ++i) want[t * k + i] = scored[i].second;
      std::sort(want.begin() + t * k, want.begin() + (t + 1) * k);
    }
  }
  for (const Impl<IndexSelect>& impl : impls<IndexSelect>()) {
    std::vector<int32_t> out(tokens * k, -7);
    const IndexSelect op{
        .out = make_tensor(out.data(), DType::i32, {tokens, k}),
        .q = matrix(q, shape.heads * shape.head_dim),
        .weights = matrix(weights, shape.heads),
        .cache = make_tensor(keys.data(), DType::f32, {blocks, 1, block_size, shape.head_dim}),
        .batch = &batch,
        .shape = shape};
    check(op);
    ThreadPool pool(2);
    Stream stream(pool);
    if (impl.refuse(stream, op) != nullptr) continue;
    impl.run(stream, op);
    EXPECT_EQ(out, want) << impl.name;
  }
}

}  // namespace
}  // namespace atom::ops
