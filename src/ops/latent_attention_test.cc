// Latent attention: the absorbed form against the expanded reference, its store, and per-head products.
#include "ops/latent_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "ops/cpu/latent.h"

namespace atom::ops {
namespace {

class Numbers {
 public:
  std::vector<float> operator()(int64_t n, float spread = 1) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> x(n);
    for (float& value : x) value = normal(rng_);
    return x;
  }

 private:
  std::mt19937 rng_{7};
};

Tensor matrix(std::vector<float>& x, int64_t cols) {
  return make_tensor(x.data(), DType::f32, {static_cast<int64_t>(x.size()) / cols, cols});
}

double error(const std::vector<float>& got, const std::vector<float>& want) {
  double worst = 0, top = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::fabs(double{got[i]} - want[i]));
    top = std::max(top, std::fabs(double{want[i]}));
  }
  return worst / top;
}

// Two sequences, one with a prefix in the cache, in blocks of 4 in no order; every entry is filled.
struct Fixture {
  explicit Fixture(LatentShape s, DType dtype = DType::f32) : shape(s) {
    const std::vector<float> x = numbers(int64_t{kBlocks} * kBlockSize * s.entry_dim());
    bytes.resize(dtype_bytes(dtype, static_cast<int64_t>(x.size())));
    for (size_t i = 0; i < x.size(); ++i) {
      const uint16_t bits = dtype == DType::bf16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
      if (dtype == DType::f32) {
        std::memcpy(bytes.data() + 4 * i, &x[i], 4);
      } else {
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
      }
    }
    cache = make_tensor(bytes.data(), dtype, {kBlocks, 1, kBlockSize, s.entry_dim()});
    w = numbers(int64_t{s.heads} * (s.nope_dim + s.v_dim) * s.kv_rank,
                1 / std::sqrt(static_cast<float>(s.kv_rank)));
    part.data = matrix(w, s.kv_rank);
    q = numbers(int64_t{kTokens} * s.heads * s.query_dim());
  }

  std::vector<float> attend(void (*run)(Stream&, const LatentAttention&), Tensor selected = {}) {
    ThreadPool pool(2);
    Stream stream(pool);
    std::vector<float> out(int64_t{kTokens} * shape.heads * shape.v_dim);
    const LatentAttention op{.out = matrix(out, int64_t{shape.heads} * shape.v_dim),
                             .q = matrix(q, int64_t{shape.heads} * shape.query_dim()),
                             .kv_b = {{&part, 1}, part.data.dim(0), shape.kv_rank},
                             .cache = cache,
                             .selected = selected,
                             .batch = &batch,
                             .shape = shape,
                             .scale = 0.3f};
    check(op);
    run(stream, op);
    return out;
  }

  static constexpr int32_t kBlocks = 8, kBlockSize = 4, kTokens = 10;
  Numbers numbers;
  LatentShape shape;
  std::vector<uint8_t> bytes;
  Tensor cache;
  std::vector<float> w, q;
  WeightPart part;
  std::vector<int32_t> tables[2] = {{5, 2, 7, 0}, {3, 6}};
  std::vector<AttentionSequence> sequences = {{0, 4, 9, tables[0].data()}, {4, 6, 0, tables[1].data()}};
  AttentionBatch batch{sequences, kBlockSize, kTokens};
};

constexpr LatentShape kShapes[] = {{4, 12, 8, 12, 16}, {3, 8, 4, 20, 24}, {5, 24, 2, 8, 40}};

TEST(LatentAttention, AbsorbedFormEqualsTheExpandedOne) {
  for (const LatentShape& shape : kShapes) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      Fixture f(shape, dtype);
      const std::vector<float> want = f.attend(cpu::latent_attention_ref);
      const double limit = dtype == DType::bf16 ? 2e-2 : 2e-6;  // kernels for bf16 caches round queries
      EXPECT_LT(error(f.attend(cpu::latent_absorbed), want), limit)
          << shape.heads << " heads, " << dtype_name(dtype);
      EXPECT_LT(error(f.attend(cpu::latent_expanded), want), limit)
          << shape.heads << " heads, " << dtype_name(dtype);
    }
  }
}

TEST(LatentAttention, VisitsSelectedPositionsOnly) {
  Fixture f(kShapes[0]);
  // Three positions per row; rows at positions 0, 1 and 2 see all they have.
  std::vector<int32_t> selected(Fixture::kTokens * 3, -1);
  for (int32_t t = 0; t < Fixture::kTokens; ++t) {
    const int32_t position = t < 4 ? 9 + t : t - 4;
    if (position >= 3) {
      selected[3 * t] = 0;
      selected[3 * t + 1] = position - 2;
      selected[3 * t + 2] = position;
    }
  }
  const Tensor tensor = make_tensor(selected.data(), DType::i32, {Fixture::kTokens, 3});
  const std::vector<float> want = f.attend(cpu::latent_attention_ref, tensor);
  EXPECT_LT(error(f.attend(cpu::latent_absorbed, tensor), want), 2e-6);
  EXPECT_GT(error(f.attend(cpu::latent_attention_ref), want), 1e-2);
}

TEST(LatentAttention, StoreNormalisesTheLatentAndRotatesBothKeys) {
  const LatentShape shape{2, 2, 4, 2, 4};
  std::vector<float> q = {9, 9, 1, 2, 3, 4, 8, 8, 1, 2, 3, 4};
  std::vector<float> kv = {1, -1, 1, -1, 1, 2, 3, 4};
  std::vector<float> norm = {1, 2, 3, 4}, cos = {std::cos(1.0f), std::cos(0.01f)},
                     sin = {std::sin(1.0f), std::sin(0.01f)};
  std::vector<float> cache(2 * 8);
  const int32_t table[] = {0};
  const AttentionSequence sequence{0, 1, 1, table};
  const AttentionBatch batch{{&sequence, 1}, 2, 1};
  ThreadPool pool(1);
  Stream stream(pool);
  run(stream, LatentStore{.q = matrix(q, 12),
                          .kv = matrix(kv, 8),
                          .norm = make_tensor(norm.data(), DType::f32, {4}),
                          .cache = make_tensor(cache.data(), DType::f32, {1, 1, 2, 8}),
                          .batch = &batch,
                          .rope = {matrix(cos, 2), matrix(sin, 2)},
                          .shape = shape});
  const float rotated[] = {-1.14263966f, 1.92207560f, 2.95985067f, 4.02979950f};  // interleaved, position 1
  const float latent[] = {1, -2, 3, -4};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(q[2 + i], rotated[i], 1e-6);
    EXPECT_NEAR(q[8 + i], rotated[i], 1e-6);
    EXPECT_NEAR(cache[8 + i], latent[i], 1e-5);
    EXPECT_NEAR(cache[12 + i], rotated[i], 1e-6);
    EXPECT_EQ(cache[i], 0);
  }
  EXPECT_EQ(q[0], 9);
  EXPECT_EQ(q[6], 8);
}

TEST(HeadProject, EveryImplementationAgreesWithTheReference) {
  Numbers numbers;
  const int32_t heads = 3, head_rows = 21, cols = 37, tokens = 35;
  for (const bool transposed : {false, true}) {
    std::vector<float> w = numbers(heads * head_rows * cols), x = numbers(tokens * heads * 40);
    const WeightPart part{matrix(w, cols), {}};
    std::vector<float> want;
    for (size_t i = impls<HeadProject>().size(); i-- > 0;) {
      std::vector<float> out(tokens * heads * 40);
      const HeadProject op{matrix(out, heads * 40),
                           matrix(x, heads * 40),
                           {{&part, 1}, heads * head_rows, cols},
                           heads,
                           head_rows,
                           4,
                           13,
                           40,
                           40,
                           transposed};
      check(op);
      ThreadPool pool(2);
      Stream stream(pool);
      const Impl<HeadProject>& impl = impls<HeadProject>()[i];
      if (impl.refuse(stream, op) != nullptr) continue;
      impl.run(stream, op);
      if (want.empty()) want = out;
      EXPECT_LT(error(out, want), 1e-6) << impl.name;
    }
  }
}

}  // namespace
}  // namespace atom::ops
