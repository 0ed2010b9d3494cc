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

// Numbers of a plain decoder of E4M3, written for this test.
float e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

// Keys in one cache, of any of its types.
struct CachedKeys {
  DType dtype;
  int64_t blocks, block_size, dim;
  std::vector<float> floats, scales;
  std::vector<uint16_t> halves;
  std::vector<uint8_t> codes;

  float lane(int64_t slot, int64_t d) const {
    const int64_t i = slot * dim + d;
    if (dtype == DType::f8e4m3) return e4m3(codes[i]) * scales[slot];
    if (dtype == DType::f32) return floats[i];
    return dtype == DType::bf16 ? bf16_to_f32(halves[i]) : f16_to_f32(halves[i]);
  }
  Tensor cache() {
    void* data = dtype == DType::f8e4m3 ? static_cast<void*>(codes.data()) : halves.data();
    return make_tensor(dtype == DType::f32 ? floats.data() : data, dtype, {blocks, 1, block_size, dim});
  }
  Tensor cache_scales() {
    if (dtype != DType::f8e4m3) return {};
    return make_tensor(scales.data(), DType::f32, {blocks, block_size});
  }
};

void expect_best_of_the_whole_context(DType dtype, const IndexShape& shape, int32_t k) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  const int32_t block_size = 8, blocks = 60, tokens = 5;
  auto numbers = [&](int64_t n) {
    std::vector<float> x(n);
    for (float& v : x) v = normal(rng);
    return x;
  };
  CachedKeys keys{dtype, blocks, block_size, shape.head_dim, numbers(blocks * block_size * shape.head_dim),
                  {},    {},     {}};
  for (const float x : keys.floats)
    keys.halves.push_back(dtype == DType::bf16 ? f32_to_bf16(x) : f32_to_f16(x));
  for (size_t i = 0; i < keys.floats.size(); ++i) {
    uint8_t code;
    do code = static_cast<uint8_t>(rng());
    while ((code & 0x7F) == 0x7F);  // NaN
    keys.codes.push_back(code);
  }
  for (int i = 0; i < blocks * block_size; ++i)
    keys.scales.push_back(std::ldexp(1.0f, static_cast<int>(rng() % 5) - 10));
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
        const int64_t slot = s.block_table[u / block_size] * block_size + u % block_size;
        double score = 0;
        for (int32_t h = 0; h < shape.heads; ++h) {
          double dot = 0;
          for (int32_t d = 0; d < shape.head_dim; ++d)
            dot += static_cast<double>(q[(t * shape.heads + h) * shape.head_dim + d]) * keys.lane(slot, d);
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
    const IndexSelect op{.out = make_tensor(out.data(), DType::i32, {tokens, k}),
                         .q = matrix(q, shape.heads * shape.head_dim),
                         .weights = matrix(weights, shape.heads),
                         .cache = keys.cache(),
                         .batch = &batch,
                         .shape = shape,
                         .scales = keys.cache_scales()};
    check(op);
    ThreadPool pool(2);
    Stream stream(pool);
    if (impl.refuse(stream, op) != nullptr) continue;
    impl.run(stream, op);
    EXPECT_EQ(out, want) << impl.name << " " << dtype_name(dtype) << " " << shape.head_dim;
  }
}

TEST(Indexer, EveryImplementationChoosesTheBestOfTheWholeContext) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e4m3}) {
    for (const int32_t dim : {4, 20, 67, 128}) expect_best_of_the_whole_context(dtype, {6, dim, 4}, 7);
  }
}

// What one row stores for a key of these lanes, without rotation.
struct StoredKey {
  std::vector<uint8_t> codes;
  float scale;
};
StoredKey stored(std::vector<float> key) {
  const auto dim = static_cast<int32_t>(key.size());
  std::vector<float> q(dim), k(dim, 1), weight(dim, 0), cos = {1}, sin = {0}, scales(2 * 3, -1);
  StoredKey result{std::vector<uint8_t>(2 * 3 * dim, 0x55), 0};
  const int32_t table[] = {1};
  const AttentionSequence sequence{0, 1, 2, table};
  const AttentionBatch batch{{&sequence, 1}, 3, 1};
  ThreadPool pool(1);
  Stream stream(pool);
  run(stream, IndexStore{.q = matrix(q, dim),
                         .k = matrix(k, dim),
                         .norm_weight = make_tensor(weight.data(), DType::f32, {dim}),
                         .norm_bias = make_tensor(key.data(), DType::f32, {dim}),
                         .cache = make_tensor(result.codes.data(), DType::f8e4m3, {2, 1, 3, dim}),
                         .batch = &batch,
                         .rope = {matrix(cos, 1), matrix(sin, 1)},
                         .shape = {1, dim, 2},
                         .norm_eps = 1e-6f,
                         .scales = make_tensor(scales.data(), DType::f32, {2, 3})});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(scales[i], -1) << "another key's scale";
  for (int64_t i = 0; i < int64_t{5} * dim; ++i) EXPECT_EQ(result.codes[i], 0x55) << "another key's codes";
  result.codes.erase(result.codes.begin(), result.codes.begin() + int64_t{5} * dim);
  result.scale = scales[5];
  return result;
}

TEST(Indexer, AKeyIsScaledByTheSmallestPowerOfTwoThatMakesItFit) {
  EXPECT_EQ(stored({0, 0, 448, 1}).scale, 1);
  EXPECT_EQ(stored({0, 0, -449, 1}).scale, 2);
  EXPECT_EQ(stored({3, -3, 0, 1}).scale, 0.0078125f);
  EXPECT_EQ(stored({0, 0, 0, 0}).scale, std::ldexp(1.0f, -22));  // that of 1e-4
  std::mt19937 rng(5);
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::normal_distribution<float> normal(0, std::ldexp(1.0f, static_cast<int>(rng() % 20) - 10));
    std::vector<float> key(24);
    for (float& x : key) x = normal(rng);
    const StoredKey got = stored(key);
    float largest = 0;
    for (const float x : key) largest = std::max(largest, std::abs(x));
    ASSERT_LE(largest / got.scale, 448);
    ASSERT_TRUE(largest / got.scale > 224 || largest < 1e-4f) << largest << " by " << got.scale;
    for (size_t d = 0; d < key.size(); ++d) {
      const double step = std::max(std::abs(key[d]) / 8.0, got.scale * std::ldexp(1.0, -9));
      ASSERT_LE(std::abs(e4m3(got.codes[d]) * got.scale - key[d]), step / 2 * 1.0001);
    }
  }
}

TEST(Indexer, AKeyThatIsNotFiniteHasNoScale) {
  for (const float x : {INFINITY, -INFINITY, std::nanf("")})
    EXPECT_TRUE(std::isnan(stored({1, 2, 3, x}).scale)) << x;
}

// Keys as layer norms leave them, a context of which an eighth is chosen.
TEST(Indexer, ScaledKeysChooseNearlyWhatFloatsChoose) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  const IndexShape shape{32, 128, 64};
  const int32_t context = 4096, k = 512, block_size = 16, blocks = context / block_size;
  auto numbers = [&](int64_t n) {
    std::vector<float> x(n);
    for (float& v : x) v = normal(rng);
    return x;
  };
  std::vector<float> keys = numbers(int64_t{context} * 128), q = numbers(32 * 128), weights = numbers(32),
                     none(128), ones(128, 1), cos(context * 32, 1), sin(context * 32), stored(keys.size()),
                     scales(context), unused(context * 32 * 128);
  std::vector<uint8_t> codes(keys.size());
  std::vector<int32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  ThreadPool pool(2);
  Stream stream(pool);
  const AttentionSequence all{0, context, 0, table.data()}, last{0, 1, context - 1, table.data()};
  const AttentionBatch prompt{{&all, 1}, block_size, context}, decode{{&last, 1}, block_size, 1};
  const Tensor caches[] = {make_tensor(stored.data(), DType::f32, {blocks, 1, block_size, 128}),
                           make_tensor(codes.data(), DType::f8e4m3, {blocks, 1, block_size, 128})};
  std::vector<int32_t> chosen[2];
  for (int i = 0; i < 2; ++i) {
    const Tensor units = i == 0 ? Tensor{} : make_tensor(scales.data(), DType::f32, {blocks, block_size});
    run(stream, IndexStore{.q = matrix(unused, 32 * 128),
                           .k = matrix(keys, 128),
                           .norm_weight = make_tensor(ones.data(), DType::f32, {128}),
                           .norm_bias = make_tensor(none.data(), DType::f32, {128}),
                           .cache = caches[i],
                           .batch = &prompt,
                           .rope = {matrix(cos, 32), matrix(sin, 32)},
                           .shape = shape,
                           .norm_eps = 1e-6f,
                           .scales = units});
    chosen[i].resize(k);
    run(stream, IndexSelect{make_tensor(chosen[i].data(), DType::i32, {1, k}), matrix(q, 32 * 128),
                            matrix(weights, 32), caches[i], &decode, shape, units});
  }
  std::vector<int32_t> common;
  std::set_intersection(chosen[0].begin(), chosen[0].end(), chosen[1].begin(), chosen[1].end(),
                        std::back_inserter(common));
  RecordProperty("common", static_cast<int>(common.size()));
  EXPECT_LT(common.size(), static_cast<size_t>(k));  // else codes were not used
  EXPECT_GT(common.size(), static_cast<size_t>(k * 94 / 100));
}

}  // namespace
}  // namespace atom::ops
