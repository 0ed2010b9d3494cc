// Routers on a GPU, each entry against the CPU: rules, storage, ties, and the product beside.
#include <array>

#include "ops/gpu/device_test.h"
#include "ops/norm.h"
#include "ops/router.h"

namespace atom::ops {
namespace {

struct RouterCase {
  DType dtype = DType::bf16;
  int64_t hidden = 256, experts = 64, k = 4, tokens = 1;
  RouteExperts rule = {};
  bool biased = false, corrected = false, also = false;
  bool fused = true;
};

class GpuRouter : public GpuOps {
 protected:
  void expect_agrees(const RouterCase& c) {
    const float spread = 2 / std::sqrt(static_cast<float>(c.hidden));
    const Twin x = random({c.tokens, c.hidden}), w = random({c.experts, c.hidden}, c.dtype, spread),
               gate = random({1, c.hidden}, c.dtype, spread), bias = random({c.experts}),
               correction = random({c.experts}, DType::f32, 0.1f), logits = nans({c.tokens, c.experts}),
               weights = nans({c.tokens, c.k}), also = nans({c.tokens, 1});
    std::vector<int32_t> want(static_cast<size_t>(c.tokens * c.k));
    const std::vector<int32_t> poison(want.size(), -7);
    const auto bytes = static_cast<int64_t>(want.size() * sizeof(int32_t));
    const Tensor ids = make_tensor(upload(poison.data(), bytes), DType::i32, {c.tokens, c.k}, device_);
    const std::vector<WeightPart> host_w = {{w.host, {}}}, device_w = {{w.device, {}}},
                                  host_gate = {{gate.host, {}}}, device_gate = {{gate.device, {}}};
    auto op_of = [&](Tensor Twin::*side, const Tensor& out, std::span<const WeightPart> matrix,
                     std::span<const WeightPart> row) {
      RouteRows op{
          .logits = {logits.*side, x.*side, {matrix, c.experts, c.hidden}, c.biased ? bias.*side : Tensor{}},
          .route = c.rule};
      op.route.ids = out;
      op.route.weights = weights.*side;
      op.route.logits = logits.*side;
      if (c.corrected) op.route.correction = correction.*side;
      if (c.also) op.also = {also.*side, x.*side, {row, 1, c.hidden}};
      return op;
    };
    run(cpu_, op_of(&Twin::host, make_tensor(want.data(), DType::i32, {c.tokens, c.k}), host_w, host_gate));
    const RouteRows device = op_of(&Twin::device, ids, device_w, device_gate);
    check(device);
    std::vector<std::string> took;
    for (const Impl<RouteRows>& impl : gpu_impls<RouteRows>()) {
      if (impl.refuse(*gpu_, device) != nullptr) continue;
      took.emplace_back(impl.name);
      const std::string what = fmt::format("{}: {} of {} experts, {} rows of {}, score {}, groups {}/{}",
                                           impl.name, c.k, c.experts, c.tokens, c.hidden,
                                           static_cast<int>(c.rule.score), c.rule.top_groups, c.rule.groups);
      for (int repeat = 0; repeat < 2; ++repeat) {
        queue_->copy_to_device(ids.data, poison.data(), bytes);
        impl.run(*gpu_, device);
        std::vector<int32_t> got(want.size());
        queue_->copy_to_host(got.data(), ids.data, bytes);
        queue_->wait();
        EXPECT_EQ(got, want) << what;
      }
      EXPECT_LT(error_of(weights), 1e-5) << what;
      EXPECT_LT(error_of(logits), 1e-5) << what;
      if (c.also) {
        EXPECT_LT(error_of(also), 1e-5) << what;
      }
    }
    EXPECT_EQ(took.front() == "route_rows.few", c.fused);
    memory_.clear();
    buffers_.clear();
  }
};

TEST_F(GpuRouter, RoutersAgree) {
  int variant = 0;
  for (const RouterScore score : {RouterScore::softmax, RouterScore::softmax_chosen, RouterScore::sigmoid}) {
    for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) {
      for (const auto& [experts, k] : {std::pair<int64_t, int64_t>{1, 1},
                                       {8, 2},
                                       {32, 4},
                                       {128, 8},
                                       {129, 9},
                                       {256, 8},
                                       {512, 10},
                                       {500, 32}}) {
        for (const int64_t tokens : {1, 3, 8}) {
          ++variant;
          expect_agrees({.dtype = dtype,
                         .hidden = variant % 3 == 0   ? 2880
                                   : variant % 3 == 1 ? 72
                                                      : 6144,
                         .experts = experts,
                         .k = k,
                         .tokens = tokens,
                         .rule = {.score = score, .renormalize = variant % 2 == 0, .scale = 1.5f},
                         .biased = variant % 4 == 0,
                         .corrected = variant % 3 == 2,
                         .also = variant % 5 == 0});
        }
      }
    }
    for (const auto& [groups, top] : {std::pair<int32_t, int32_t>{8, 4}, {4, 1}, {32, 9}}) {
      expect_agrees({.experts = 256,
                     .k = 6,
                     .tokens = 4,
                     .rule = {.score = score, .groups = groups, .top_groups = top, .renormalize = true},
                     .corrected = true,
                     .also = true});
    }
  }
}

TEST_F(GpuRouter, RoutersOfSeveralRowsAgree) {
  for (const auto& [tokens, experts, k] : {std::array<int64_t, 3>{9, 1, 1}, {21, 128, 4}, {130, 500, 32}}) {
    for (const int64_t hidden : {72, 2880, 3080}) {
      expect_agrees({.dtype = DType::bf16,
                     .hidden = hidden,
                     .experts = experts,
                     .k = k,
                     .tokens = tokens,
                     .rule = {.score = RouterScore::softmax_chosen},
                     .biased = tokens == 21,
                     .also = tokens == 9,
                     .fused = false});
    }
  }
}

TEST_F(GpuRouter, OtherRoutersAreComposed) {
  expect_agrees({.tokens = 9, .also = true, .fused = false});
  expect_agrees({.hidden = 33, .fused = false});
  expect_agrees({.experts = 600, .fused = false});
}

// A norm that was put off and a router that reads it, of widths that fit into registers and of others.
TEST_F(GpuRouter, NormsBeforeRoutersAgree) {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) {
    for (const auto& [experts, hidden] : {std::pair<int64_t, int64_t>{8, 72},
                                          {128, 2048},
                                          {256, 6144},
                                          {512, 2048},
                                          {200, 9216},
                                          {300, 7168}}) {
      for (const bool takes_also : {false, true}) {
        const float spread = 2 / std::sqrt(static_cast<float>(hidden));
        const Twin x = random({1, hidden}, DType::f32, 3), norm = random({hidden}),
                   w = random({experts, hidden}, dtype, spread), gate = random({1, hidden}, dtype, spread),
                   normed = nans({1, hidden}), logits = nans({1, experts}), weights = nans({1, 6}),
                   also = nans({1, 1});
        std::vector<int32_t> want(6), got(6);
        const Tensor ids = make_tensor(upload(want.data(), 24), DType::i32, {1, 6}, device_);
        const std::vector<WeightPart> host_w = {{w.host, {}}}, device_w = {{w.device, {}}},
                                      host_gate = {{gate.host, {}}}, device_gate = {{gate.device, {}}};
        RouteRows host{.logits = {logits.host, normed.host, {host_w, experts, hidden}},
                       .route = {.ids = make_tensor(want.data(), DType::i32, {1, 6}),
                                 .weights = weights.host,
                                 .logits = logits.host,
                                 .score = RouterScore::sigmoid,
                                 .renormalize = true}};
        RouteRows device{.logits = {logits.device, normed.device, {device_w, experts, hidden}},
                         .route = host.route};
        device.route.ids = ids;
        device.route.weights = weights.device;
        device.route.logits = logits.device;
        if (takes_also) {
          host.also = {also.host, normed.host, {host_gate, 1, hidden}};
          device.also = {also.device, normed.device, {device_gate, 1, hidden}};
        }
        run(cpu_, RmsNorm{normed.host, x.host, norm.host, 1e-5f, 1});
        run(cpu_, host);
        run(*gpu_, RmsNorm{normed.device, x.device, norm.device, 1e-5f, 1});
        run(*gpu_, device);
        queue_->copy_to_host(got.data(), ids.data, 24);
        queue_->wait();
        const std::string what = fmt::format("{} {}x{}", dtype_name(dtype), experts, hidden);
        EXPECT_EQ(got, want) << what;
        EXPECT_LT(error_of(normed), 1e-6) << what;
        EXPECT_LT(error_of(logits), 1e-5) << what;
        EXPECT_LT(error_of(weights), 1e-5) << what;
        if (takes_also) {
          EXPECT_LT(error_of(also), 1e-5) << what;
        }
        memory_.clear();
        buffers_.clear();
      }
    }
  }
}

TEST_F(GpuRouter, EqualLogitsAreTakenFromTheLowestExpert) {
  const Twin x = random({2, 64}), w = twin(std::vector<float>(96 * 64, 0.5f), DType::bf16, {96, 64}),
             logits = nans({2, 96}), weights = nans({2, 5});
  const std::vector<int32_t> poison(10, -7);
  const Tensor ids = make_tensor(upload(poison.data(), 40), DType::i32, {2, 5}, device_);
  const std::vector<WeightPart> parts = {{w.device, {}}};
  const RouteRows op{.logits = {logits.device, x.device, {parts, 96, 64}},
                     .route = {.ids = ids, .weights = weights.device, .logits = logits.device}};
  ASSERT_EQ(gpu_impls<RouteRows>().front().refuse(*gpu_, op), nullptr);
  run(*gpu_, op);
  std::vector<int32_t> got(10);
  queue_->copy_to_host(got.data(), ids.data, 40);
  queue_->wait();
  EXPECT_EQ(got, (std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace atom::ops
