#include "ops/gated_delta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace atom::ops {
namespace {

// One sequence of one row, one head of one lane: q, k, v, gate, b, a.
struct Net {
  std::vector<float> in = {1, 2, 3, 0.5f, 0, 0}, qkv = {9, 9, 9}, taps = {0, 1, 0, 1, 0, 1}, conv = {7, 8, 9},
                     one = {0}, norm = {2}, state = {0}, out = {9};
  const std::vector<RecurrentSequence> sequences = {{0, 1, 0}};

  GatedDelta op() {
    const Tensor rows = make_tensor(in.data(), DType::f32, {1, 6});
    auto row = [](std::vector<float>& v) {
      return make_tensor(v.data(), DType::f32, {1, static_cast<int64_t>(v.size())});
    };
    auto vector = [](std::vector<float>& v) {
      return make_tensor(v.data(), DType::f32, {static_cast<int64_t>(v.size())});
    };
    return {.conv = {row(qkv), rows, vector(taps), row(conv), sequences, 2},
            .rule = {row(out), row(qkv), rows.cols(5, 1), rows.cols(4, 1), vector(one), vector(one),
                     row(state), sequences, 1, 1, 1, 1},
            .norm = {row(out), rows.cols(3, 1), vector(norm), 0}};
  }
};

TEST(GatedDelta, ComposesConvolutionRuleAndNorm) {
  Net net;
  ThreadPool pool(1);
  Stream stream(pool);
  run(stream, net.op());
  auto silu = [](float x) { return x / (1 + std::exp(-x)); };
  EXPECT_EQ(net.conv, (std::vector<float>{1, 2, 3}));  // the row is kept
  EXPECT_NEAR(net.state[0], 0.5f * silu(3), 1e-5);     // half of the value under a key of length 1
  EXPECT_NEAR(net.out[0], 2 * silu(0.5f), 1e-5);       // the norm of one lane is its sign
}

TEST(GatedDeltaDeathTest, TheRuleReadsWhatIsConvolved) {
  Net net;
  GatedDelta op = net.op();
  op.rule.qkv = op.conv.x.cols(0, 3);
  EXPECT_DEATH(check(op), "other tensors");
}

}  // namespace
}  // namespace atom::ops
