#include "ops/attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace atom::ops {
namespace {

TEST(Attend, ComposesStoreAttentionAndGate) {
  // One sequence of two rows, one head of two lanes, no rope: the second row sees both values.
  std::vector<float> qkv = {0, 0, 1, 0, 10, 20, /**/ 0, 0, 0, 1, 30, 40}, k(16), v(16), out(4);
  std::vector<float> gate = {0, 100, 0, -100};
  const std::vector<int32_t> table = {1};
  const std::vector<AttentionSequence> sequences = {{0, 2, 0, table.data()}};
  const AttentionBatch batch{sequences, 4, 2};
  auto cache = [](std::vector<float>& values) {
    return make_tensor(values.data(), DType::f32, {2, 1, 4, 2});
  };
  const Tensor rows = make_tensor(qkv.data(), DType::f32, {2, 6});
  const Attend op{.store = {.qkv = rows,
                            .k_cache = cache(k),
                            .v_cache = cache(v),
                            .batch = &batch,
                            .heads = 1,
                            .kv_heads = 1,
                            .head_dim = 2},
                  .attention = {.out = make_tensor(out.data(), DType::f32, {2, 2}),
                                .q = rows,
                                .k_cache = cache(k),
                                .v_cache = cache(v),
                                .batch = &batch,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = 2,
                                .scale = 1},
                  .gate = make_tensor(gate.data(), DType::f32, {2, 2})};
  ThreadPool pool(1);
  Stream stream(pool);
  run(stream, op);
  EXPECT_EQ(k[8], 1);
  EXPECT_EQ(v[8 + 3], 40);
  EXPECT_FLOAT_EQ(out[0], 5);
  EXPECT_FLOAT_EQ(out[1], 20);
  EXPECT_FLOAT_EQ(out[2], 10);
  EXPECT_NEAR(out[3], 0, 1e-6);
}

TEST(AttendDeathTest, StoreAndAttentionMustSpeakOfTheSameHeadsAndCaches) {
  std::vector<float> qkv(6), k(8), v(8), out(2);
  const std::vector<int32_t> table = {0};
  const std::vector<AttentionSequence> sequences = {{0, 1, 0, table.data()}};
  const AttentionBatch batch{sequences, 4, 1};
  auto cache = [](std::vector<float>& values) {
    return make_tensor(values.data(), DType::f32, {1, 1, 4, 2});
  };
  const Tensor rows = make_tensor(qkv.data(), DType::f32, {1, 6});
  Attend op{.store = {.qkv = rows,
                      .k_cache = cache(k),
                      .v_cache = cache(v),
                      .batch = &batch,
                      .heads = 1,
                      .kv_heads = 1,
                      .head_dim = 2},
            .attention = {.out = make_tensor(out.data(), DType::f32, {1, 2}),
                          .q = rows,
                          .k_cache = cache(v),
                          .v_cache = cache(v),
                          .batch = &batch,
                          .heads = 1,
                          .kv_heads = 1,
                          .head_dim = 2,
                          .scale = 1}};
  EXPECT_DEATH(check(op), "other tensors");
}

}  // namespace
}  // namespace atom::ops
