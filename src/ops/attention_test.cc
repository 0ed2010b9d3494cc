#include "ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cpu/cpu_features.h"
#include "tensor/small_floats.h"

namespace atom::ops {
namespace {

struct Shape {
  int32_t heads, kv_heads, head_dim, block_size;
  DType dtype;
};

// A paged cache whose slots are all NaN until written, with blocks in a shuffled order.
class Fixture {
 public:
  // (rows, context) of each sequence.
  Fixture(const Shape& shape, const std::vector<std::pair<int32_t, int32_t>>& lengths, uint32_t seed = 1)
      : shape_(shape), rng_(seed) {
    int32_t blocks = 3, row = 0;
    for (auto [rows, context] : lengths) blocks += (rows + context + shape.block_size - 1) / shape.block_size;
    std::vector<int32_t> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng_);
    tables_.resize(lengths.size());
    for (size_t i = 0; i < lengths.size(); ++i) {
      auto [rows, context] = lengths[i];
      for (int32_t b = 0; b * shape.block_size < rows + context; ++b) {
        tables_[i].push_back(order.back());
        order.pop_back();
      }
      sequences_.push_back({row, rows, context, tables_[i].data()});
      row += rows;
    }
    batch_ = {sequences_, shape.block_size, row};
    const int64_t elements = int64_t{blocks} * shape.kv_heads * shape.block_size * shape.head_dim;
    for (auto* cache : {&k_, &v_})
      cache->assign(static_cast<size_t>(dtype_bytes(shape.dtype, elements)), 0xFF);
    blocks_ = blocks;
  }

  Tensor cache(std::vector<uint8_t>& bytes) {
    return make_tensor(bytes.data(), shape_.dtype,
                       {blocks_, shape_.kv_heads, shape_.block_size, shape_.head_dim});
  }
  Tensor k_cache() { return cache(k_); }
  Tensor v_cache() { return cache(v_); }

  std::vector<float> randoms(int64_t n, float spread = 1) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> x(n);
    for (float& value : x) value = normal(rng_);
    return x;
  }

  // Writes keys and values of positions [first visible, end) of every sequence.
  void fill(int32_t window) {
    for (const AttentionSequence& s : sequences_) {
      const int32_t first = window == 0 ? 0 : std::max(0, s.context - window + 1);
      for (int32_t p = first; p < s.context + s.rows; ++p) {
        for (int32_t h = 0; h < shape_.kv_heads; ++h) {
          write(k_, s.block_table, p, h, randoms(shape_.head_dim));
          write(v_, s.block_table, p, h, randoms(shape_.head_dim));
        }
      }
    }
  }

  // Entries that lie wholly before the windows of all rows.
  void forget_blocks_before(int32_t window) {
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const int32_t first = std::max(0, sequences_[i].context - window + 1);
      for (int32_t b = 0; (b + 1) * shape_.block_size <= first; ++b) tables_[i][b] = -1;
    }
  }

  size_t offset(const int32_t* table, int32_t position, int32_t head) const {
    const int64_t slot =
        (int64_t{table[position / shape_.block_size]} * shape_.kv_heads + head) * shape_.block_size +
        position % shape_.block_size;
    return static_cast<size_t>(dtype_bytes(shape_.dtype, slot * shape_.head_dim));
  }
  void write(std::vector<uint8_t>& cache, const int32_t* table, int32_t position, int32_t head,
             const std::vector<float>& x) {
    uint8_t* to = cache.data() + offset(table, position, head);
    for (size_t i = 0; i < x.size(); ++i) {
      if (shape_.dtype == DType::f32) {
        std::memcpy(to + 4 * i, &x[i], 4);
      } else if (shape_.dtype == DType::f8e4m3) {
        to[i] = f32_to_f8e4m3(x[i]);
      } else {
        const uint16_t bits = shape_.dtype == DType::bf16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
        std::memcpy(to + 2 * i, &bits, 2);
      }
    }
  }

  const AttentionBatch& batch() const { return batch_; }
  const Shape& shape() const { return shape_; }
  std::vector<uint8_t>& k_bytes() { return k_; }
  std::vector<uint8_t>& v_bytes() { return v_; }

 private:
  Shape shape_;
  std::mt19937 rng_;
  int64_t blocks_ = 0;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<AttentionSequence> sequences_;
  AttentionBatch batch_;
  std::vector<uint8_t> k_, v_;
};

template <class Op>
std::vector<const Impl<Op>*> usable(const Stream& stream, const Op& op) {
  std::vector<const Impl<Op>*> list;
  for (const Impl<Op>& impl : impls<Op>()) {
    if (impl.refuse(stream, op) == nullptr) list.push_back(&impl);
  }
  return list;
}

bool rounds_to_bf16(const char* name) { return std::string_view(name) == "attention.amx"; }

struct Problem {
  Fixture fixture;
  std::vector<float> q, out, sinks;
  PagedAttention op;

  Problem(const Shape& shape, const std::vector<std::pair<int32_t, int32_t>>& lengths, int32_t window,
          bool with_sinks, float q_spread = 1)
      : fixture(shape, lengths) {
    fixture.fill(window);
    if (window > 0) fixture.forget_blocks_before(window);
    const int64_t tokens = fixture.batch().tokens, width = int64_t{shape.heads} * shape.head_dim;
    const int64_t stride = width + 2 * int64_t{shape.kv_heads} * shape.head_dim;
    q = fixture.randoms(tokens * stride, q_spread);
    out.resize(tokens * width);
    sinks = fixture.randoms(shape.heads, 2);
    op.out = make_tensor(out.data(), DType::f32, {tokens, width});
    op.q = make_tensor(q.data(), DType::f32, {tokens, stride});
    op.k_cache = fixture.k_cache();
    op.v_cache = fixture.v_cache();
    if (with_sinks) op.sinks = make_tensor(sinks.data(), DType::f32, {shape.heads});
    op.batch = &fixture.batch();
    op.heads = shape.heads;
    op.kv_heads = shape.kv_heads;
    op.head_dim = shape.head_dim;
    op.window = window;
    op.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    if (shape.dtype == DType::f8e4m3) op.scales = {0.75f, 1.5f};
  }

  std::vector<float> result(Stream& stream, const Impl<PagedAttention>& impl) {
    std::fill(out.begin(), out.end(), std::nanf(""));
    check(op);
    impl.run(stream, op);
    return out;
  }

  void expect_all_agree(Stream& stream) {
    const auto list = usable(stream, op);
    const std::vector<float> expected = result(stream, *list.back());
    for (const auto* impl : list) {
      const std::vector<float> actual = result(stream, *impl);
      double worst = 0;
      for (size_t i = 0; i < actual.size(); ++i) {
        const double error = std::abs(static_cast<double>(actual[i]) - expected[i]);
        worst = std::isnan(actual[i]) ? INFINITY : std::max(worst, error);
      }
      EXPECT_LT(worst, rounds_to_bf16(impl->name) ? 3e-2 : 3e-6)
          << impl->name << " heads " << op.heads << "/" << op.kv_heads << " dim " << op.head_dim << " block "
          << fixture.shape().block_size << " " << dtype_name(op.k_cache.dtype) << " window " << op.window
          << (op.sinks ? " sinks" : "");
    }
  }
};

class PagedAttentionMatrix : public testing::TestWithParam<DType> {};

TEST_P(PagedAttentionMatrix, EveryImplementationMatchesTheReference) {
  ThreadPool pool(1);
  Stream stream(pool);
  const std::pair<int32_t, int32_t> heads[] = {{1, 1}, {7, 1}, {6, 2}};
  // Decodes and chunks mixed; contexts at the edges of blocks, tiles and windows.
  const std::vector<std::pair<int32_t, int32_t>> batches[] = {
      {{1, 0}}, {{1, 16}, {1, 70}, {40, 0}, {1, 3}, {5, 130}}, {{33, 31}, {2, 63}, {1, 64}, {1, 127}}};
  int32_t variant = 0;
  for (auto [h, kv] : heads) {
    for (const int32_t dim : {8, 64, 72, 128}) {
      for (const int32_t block_size : {1, 4, 16, 32, 128}) {
        for (const auto& batch : batches) {
          // Windows and sinks rotate through the matrix, so that each meets every shape sooner or later.
          constexpr int32_t kWindows[] = {0, 1, 5, 16, 33, 0, 100};
          const int32_t window = kWindows[variant % 7];
          const bool sinks = variant % 3 == 0;
          ++variant;
          Problem({h, kv, dim, block_size, GetParam()}, batch, window, sinks).expect_all_agree(stream);
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Types, PagedAttentionMatrix,
                         testing::Values(DType::f32, DType::bf16, DType::f16, DType::f8e4m3),
                         [](const auto& info) { return dtype_name(info.param); });

TEST(PagedAttention, EveryInstructionSetOfThisMachineIsInTheMatrix) {
  ThreadPool pool(1);
  Stream stream(pool);
  Problem bf16({2, 1, 64, 16, DType::bf16}, {{1, 1}}, 0, false),
      f8({2, 1, 64, 16, DType::f8e4m3}, {{1, 1}}, 0, false),
      f32({2, 1, 64, 16, DType::f32}, {{1, 1}}, 0, false);
  const CpuFeatures& cpu = cpu_features();
  EXPECT_EQ(usable(stream, bf16.op).size(), size_t{1} + cpu.avx2 + cpu.avx512 + cpu.amx_bf16);
  EXPECT_EQ(usable(stream, f8.op).size(), usable(stream, bf16.op).size());
  EXPECT_EQ(usable(stream, f32.op).size(), size_t{1} + cpu.avx2 + cpu.avx512);
}

TEST(PagedAttention, HandlesOddHeadSizesAndManyHeadsPerGroup) {
  ThreadPool pool(2);
  Stream stream(pool);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e4m3}) {
    for (const int32_t dim : {1, 5, 20, 40, 80, 96, 256}) {
      Problem({3, 1, dim, 16, dtype}, {{20, 7}, {1, 30}}, 0, false).expect_all_agree(stream);
    }
    Problem({71, 1, 64, 16, dtype}, {{3, 20}, {1, 90}}, 0, true).expect_all_agree(stream);
  }
}

TEST(PagedAttention, LongContextsAreSplitAmongThreadsAndMerged) {
  ThreadPool pool(3);
  Stream stream(pool);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool sinks : {false, true}) {
      Problem({4, 1, 64, 16, dtype}, {{1, 2999}}, 0, sinks).expect_all_agree(stream);
      Problem({2, 1, 64, 16, dtype}, {{3, 1400}, {1, 5}}, 1000, sinks).expect_all_agree(stream);
    }
  }
}

TEST(PagedAttention, LongPrefillMatchesTheReference) {
  ThreadPool pool(2);
  Stream stream(pool);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e4m3}) {
    Problem({4, 2, 64, 16, dtype}, {{300, 0}}, 0, false).expect_all_agree(stream);
    Problem({4, 2, 64, 16, dtype}, {{200, 177}}, 70, true).expect_all_agree(stream);
  }
}

TEST(PagedAttention, SharpSoftmaxKeepsItsPrecision) {
  ThreadPool pool(1);
  Stream stream(pool);
  Problem p({2, 1, 64, 16, DType::f32}, {{1, 500}, {40, 100}}, 0, false, 12);  // scores up to about 40
  const auto list = usable(stream, p.op);
  const auto expected = p.result(stream, *list.back());
  for (const auto* impl : list) {
    const auto actual = p.result(stream, *impl);
    for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 3e-5) << impl->name;
  }
}

TEST(PagedAttention, WindowCountsTheQueryItself) {
  // W = 3, values are one-hot positions, keys are equal: row t averages positions max(0, t - 2) .. t.
  ThreadPool pool(1);
  Stream stream(pool);
  Fixture fixture({1, 1, 8, 2, DType::f32}, {{5, 0}});
  for (int32_t p = 0; p < 5; ++p) {
    std::vector<float> one_hot(8);
    one_hot[p] = 1;
    fixture.write(fixture.k_bytes(), fixture.batch().sequences[0].block_table, p, 0,
                  std::vector<float>(8, 0.5f));
    fixture.write(fixture.v_bytes(), fixture.batch().sequences[0].block_table, p, 0, one_hot);
  }
  std::vector<float> q(5 * 8, 1.0f), out(5 * 8);
  PagedAttention op;
  op.out = make_tensor(out.data(), DType::f32, {5, 8});
  op.q = make_tensor(q.data(), DType::f32, {5, 8});
  op.k_cache = fixture.k_cache();
  op.v_cache = fixture.v_cache();
  op.batch = &fixture.batch();
  op.heads = op.kv_heads = 1;
  op.head_dim = 8;
  op.window = 3;
  op.scale = 1;
  for (const auto* impl : usable(stream, op)) {
    impl->run(stream, op);
    for (int32_t t = 0; t < 5; ++t) {
      const int32_t first = std::max(0, t - 2);
      for (int32_t p = 0; p < 8; ++p) {
        const float expected = p >= first && p <= t ? 1.0f / static_cast<float>(t - first + 1) : 0.0f;
        EXPECT_NEAR(out[t * 8 + p], expected, 1e-6) << impl->name << " row " << t << " key " << p;
      }
    }
  }
}

TEST(PagedAttention, ARowDoesNotDependOnBatchMatesOrChunking) {
  ThreadPool pool(2);
  Stream stream(pool);
  const Shape shape{4, 2, 64, 16, DType::f32};
  // The same random stream fills the first sequence of both problems alike.
  Problem whole(shape, {{90, 0}}, 0, false), chunk(shape, {{90, 0}}, 0, false);
  const AttentionSequence& s = chunk.fixture.batch().sequences[0];
  for (const auto* impl : usable(stream, whole.op)) {
    const auto expected = whole.result(stream, *impl);
    for (int32_t first = 0; first < 90; first += 37) {
      const int32_t rows = std::min(37, 90 - first);
      const AttentionSequence part{0, rows, first, s.block_table};
      const AttentionBatch batch{{&part, 1}, shape.block_size, rows};
      PagedAttention op = chunk.op;
      op.q = op.q.rows(first, rows);
      op.out = op.out.rows(first, rows);
      op.batch = &batch;
      impl->run(stream, op);
    }
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(chunk.out[i], expected[i], 1e-6) << impl->name;
  }
}

TEST(PagedAttention, NaNInAQueryIsNotHidden) {
  ThreadPool pool(1);
  Stream stream(pool);
  Problem p({2, 1, 64, 16, DType::f32}, {{1, 40}}, 0, false);
  p.q[3] = std::nanf("");
  for (const auto* impl : usable(stream, p.op)) {
    const auto out = p.result(stream, *impl);
    EXPECT_TRUE(std::isnan(out[0])) << impl->name;
    EXPECT_FALSE(std::isnan(out[64])) << impl->name;
  }
}

// The whole of QkNormRopeStore in plain double, from the definition.
std::vector<double> expected_head(const float* x, const float* norm, const float* cos, const float* sin,
                                  const QkNormRopeStore& op) {
  std::vector<double> y(x, x + op.head_dim);
  if (norm != nullptr) {
    double squares = 0;
    for (const double v : y) squares += v * v;
    for (int32_t d = 0; d < op.head_dim; ++d) {
      y[d] *= (norm[d] + op.norm_weight_offset) / std::sqrt(squares / op.head_dim + op.norm_eps);
    }
  }
  for (int32_t i = 0; cos != nullptr && i < op.rotary_dim / 2; ++i) {
    const int32_t a = op.rope_interleaved ? 2 * i : i,
                  b = op.rope_interleaved ? 2 * i + 1 : i + op.rotary_dim / 2;
    const double first = y[a], second = y[b];
    y[a] = first * cos[i] - second * sin[i];
    y[b] = second * cos[i] + first * sin[i];
  }
  return y;
}

TEST(QkNormRopeStore, E4m3SaturatesIsScaledAndKeepsNaN) {
  ThreadPool pool(1);
  Stream stream(pool);
  const Shape shape{1, 1, 8, 4, DType::f8e4m3};
  const float nan = std::nanf("");
  std::vector<float> qkv = {0,    0, 0,   0,   0,     0,  0,       0,     // q
                            1000, 1, nan, 0.5, -900,  18, 0.0009f, -0.0,  // k; 0.0009 is under half the least
                            4000, 1, nan, 3,   -3600, 18, 0.003f,  -0.0};
  for (const Impl<QkNormRopeStore>& impl : impls<QkNormRopeStore>()) {
    Fixture fixture(shape, {{1, 2}});
    QkNormRopeStore op;
    op.qkv = make_tensor(qkv.data(), DType::f32, {1, 24});
    op.k_cache = fixture.k_cache();
    op.v_cache = fixture.v_cache();
    op.batch = &fixture.batch();
    op.heads = op.kv_heads = 1;
    op.head_dim = 8;
    op.scales.v = 4;
    check(op);
    if (impl.refuse(stream, op) != nullptr) continue;
    impl.run(stream, op);
    const size_t at = fixture.offset(fixture.batch().sequences[0].block_table, 2, 0);
    const float keys[] = {448, 1, nan, 0.5, -448, 18, 0, 0};
    const float values[] = {448, 0.25, nan, 0.75, -448, 4.5, 0, 0};
    for (int d = 0; d < 8; ++d) {
      const float k = f8e4m3_to_f32(fixture.k_bytes()[at + d]), v = f8e4m3_to_f32(fixture.v_bytes()[at + d]);
      if (d == 2) {
        EXPECT_TRUE(std::isnan(k) && std::isnan(v)) << impl.name;
        continue;
      }
      EXPECT_EQ(k, keys[d]) << impl.name << " " << d;
      EXPECT_EQ(v, values[d]) << impl.name << " " << d;
    }
  }
}

TEST(QkNormRopeStore, EveryImplementationRotatesNormalisesAndStores) {
  ThreadPool pool(2);
  Stream stream(pool);
  int32_t variant = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e4m3}) {
    for (const int32_t dim : {4, 8, 24, 64, 80, 128, 256}) {
      for (const int32_t rotary : {0, dim, dim / 2}) {
        for (const bool interleaved : {false, true}) {
          const Shape shape{3, 1, dim, ++variant % 2 == 0 ? 16 : 3, dtype};
          const bool norms = variant % 3 != 0;
          Fixture fixture(shape, {{5, 17}, {1, 0}, {30, 2}}, static_cast<uint32_t>(variant));
          const int64_t tokens = fixture.batch().tokens, width = int64_t{shape.heads + 2} * dim;
          const auto input = fixture.randoms(tokens * width);
          auto cos = fixture.randoms(tokens * (rotary / 2 + 1)),
               sin = fixture.randoms(tokens * (rotary / 2 + 1));
          auto q_norm = fixture.randoms(dim), k_norm = fixture.randoms(dim);
          auto qkv = input;
          QkNormRopeStore op;
          op.qkv = make_tensor(qkv.data(), DType::f32, {tokens, width});
          op.k_cache = fixture.k_cache();
          op.v_cache = fixture.v_cache();
          if (norms) {
            op.q_norm = make_tensor(q_norm.data(), DType::f32, {dim});
            op.k_norm = make_tensor(k_norm.data(), DType::f32, {dim});
          }
          if (rotary > 0) {
            op.rope = {make_tensor(cos.data(), DType::f32, {tokens, rotary / 2}),
                       make_tensor(sin.data(), DType::f32, {tokens, rotary / 2})};
          }
          op.batch = &fixture.batch();
          op.heads = shape.heads;
          op.kv_heads = 1;
          op.head_dim = dim;
          op.rotary_dim = rotary;
          op.rope_interleaved = interleaved;
          op.norm_eps = 1e-6f;
          op.norm_weight_offset = variant % 2 == 0 ? 1 : 0;
          check(op);
          const auto read = [&](const std::vector<uint8_t>& cache, const AttentionSequence& s, int32_t row,
                                int32_t d) {
            const uint8_t* at = cache.data() + fixture.offset(s.block_table, s.context + row, 0);
            if (dtype == DType::f32) return reinterpret_cast<const float*>(at)[d];
            if (dtype == DType::f8e4m3) return f8e4m3_to_f32(at[d]);
            const uint16_t bits = reinterpret_cast<const uint16_t*>(at)[d];
            return dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
          };
          const double step = dtype == DType::f32    ? 1e-6
                              : dtype == DType::bf16 ? 4e-3
                              : dtype == DType::f16  ? 5e-4
                                                     : 6.3e-2;
          for (const auto* impl : usable(stream, op)) {
            qkv = input;
            std::fill(fixture.k_bytes().begin(), fixture.k_bytes().end(), 0xFF);
            std::fill(fixture.v_bytes().begin(), fixture.v_bytes().end(), 0xFF);
            impl->run(stream, op);
            for (const AttentionSequence& s : fixture.batch().sequences) {
              for (int32_t row = 0; row < s.rows; ++row) {
                const int64_t t = s.first_row + row;
                const float* c = rotary > 0 ? cos.data() + t * (rotary / 2) : nullptr;
                const float* z = rotary > 0 ? sin.data() + t * (rotary / 2) : nullptr;
                for (int32_t h = 0; h <= shape.heads; ++h) {  // the last is the key
                  const float* norm = !norms ? nullptr : h < shape.heads ? q_norm.data() : k_norm.data();
                  const auto y = expected_head(input.data() + t * width + h * dim, norm, c, z, op);
                  for (int32_t d = 0; d < dim; ++d) {
                    if (h < shape.heads) {
                      ASSERT_NEAR(qkv[t * width + h * dim + d], y[d], 2e-6 * (2 + std::abs(y[d])))
                          << impl->name;
                    } else {
                      ASSERT_NEAR(read(fixture.k_bytes(), s, row, d), y[d], step * (1 + std::abs(y[d])))
                          << impl->name << " dim " << dim << " rotary " << rotary;
                    }
                  }
                }
                for (int32_t d = 0; d < dim; ++d) {
                  const float v = input[t * width + (shape.heads + 1) * dim + d];
                  const float rounded = dtype == DType::f32      ? v
                                        : dtype == DType::bf16   ? bf16_to_f32(f32_to_bf16(v))
                                        : dtype == DType::f8e4m3 ? f8e4m3_to_f32(f32_to_f8e4m3(v))
                                                                 : f16_to_f32(f32_to_f16(v));
                  ASSERT_EQ(read(fixture.v_bytes(), s, row, d), rounded) << impl->name;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(QkNormRopeStore, PairingStylesGiveTheKnownValues) {
  ThreadPool pool(1);
  Stream stream(pool);
  for (const bool interleaved : {false, true}) {
    Fixture fixture({1, 1, 4, 4, DType::f32}, {{1, 1}});
    std::vector<float> qkv = {1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 0, 0}, cos(2), sin(2);
    const std::vector<int32_t> positions = {1};
    const std::vector<float> inv_freq = {1.0f, 0.01f};
    ComputeRopeAngles angles;
    angles.out = {make_tensor(cos.data(), DType::f32, {1, 2}), make_tensor(sin.data(), DType::f32, {1, 2})};
    angles.positions = positions;
    angles.inv_freq = inv_freq;
    run(stream, angles);
    QkNormRopeStore op;
    op.qkv = make_tensor(qkv.data(), DType::f32, {1, 12});
    op.k_cache = fixture.k_cache();
    op.v_cache = fixture.v_cache();
    op.batch = &fixture.batch();
    op.rope = angles.out;
    op.heads = op.kv_heads = 1;
    op.head_dim = op.rotary_dim = 4;
    op.rope_interleaved = interleaved;
    run(stream, op);
    const std::vector<float> expected =
        interleaved ? std::vector<float>{-1.14263966f, 1.92207560f, 2.95985067f, 4.02979950f}
                    : std::vector<float>{-1.98411065f, 1.95990067f, 2.46237790f, 4.01979967f};
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(qkv[i], expected[i], 1e-6) << interleaved;
    for (int i = 4; i < 8; ++i) EXPECT_EQ(qkv[i], static_cast<float>(i - 3));  // k stays as it was
  }
}

}  // namespace
}  // namespace atom::ops
