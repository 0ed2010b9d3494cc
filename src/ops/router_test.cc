#include "ops/router.h"

#include <gtest/gtest.h>

#include <vector>

namespace atom::ops {
namespace {

TEST(RouteRows, ComposesTheProductTheChoiceAndTheProductBeside) {
  std::vector<float> x = {1, 2}, w = {0, 0, 1, 1, 3, 0}, bias = {0, 5, 0}, gate = {0.5f, 0.5f}, logits(3),
                     weights(2), beside(1);
  std::vector<int32_t> ids(2);
  auto matrix = [](std::vector<float>& v, int64_t rows) {
    return make_tensor(v.data(), DType::f32, {rows, static_cast<int64_t>(v.size()) / rows});
  };
  const std::vector<WeightPart> parts = {{matrix(w, 3), {}}}, row = {{matrix(gate, 1), {}}};
  RouteRows op{
      .logits = {matrix(logits, 1), matrix(x, 1), {parts, 3, 2}, make_tensor(bias.data(), DType::f32, {3})},
      .route = {.ids = make_tensor(ids.data(), DType::i32, {1, 2}),
                .weights = matrix(weights, 1),
                .logits = matrix(logits, 1),
                .score = RouterScore::softmax_chosen},
      .also = {matrix(beside, 1), matrix(x, 1), {row, 1, 2}}};
  ThreadPool pool(1);
  Stream stream(pool);
  run(stream, op);
  EXPECT_EQ(logits, (std::vector<float>{0, 8, 3}));
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 2}));
  EXPECT_NEAR(weights[0], 0.993307f, 1e-5);
  EXPECT_FLOAT_EQ(beside[0], 1.5f);

  op.also = {};
  beside[0] = 7;
  run(stream, op);
  EXPECT_EQ(beside[0], 7);
  op.route.logits = matrix(weights, 1);
  EXPECT_DEATH(check(op), "");
}

}  // namespace
}  // namespace atom::ops
