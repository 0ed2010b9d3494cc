// Routing and routed experts, each GPU entry against the CPU reference: rules, storage, biases, experts of
// other ranks.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/gpu/device_test.h"
#include "ops/gpu/experts_twin.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/spread_norm.h"

namespace atom::ops {
namespace {

class GpuExperts : public GpuOps {
 protected:
  void expect_routes_agree(RouteExperts op, int64_t tokens, int64_t experts, int64_t k, const Twin& logits,
                           const Tensor* correction_host = nullptr,
                           const Tensor* correction_device = nullptr) {
    std::vector<int32_t> want(static_cast<size_t>(tokens * k)), got(want.size());
    const std::vector<int32_t> poison(want.size(), -7);
    const Twin weights = nans({tokens, k});
    const auto bytes = static_cast<int64_t>(want.size() * sizeof(int32_t));
    RouteExperts host = op, device = op;
    host.ids = make_tensor(want.data(), DType::i32, {tokens, k});
    host.weights = weights.host;
    host.logits = logits.host;
    device.ids = make_tensor(upload(poison.data(), bytes), DType::i32, {tokens, k}, device_);
    device.weights = weights.device;
    device.logits = logits.device;
    if (correction_host != nullptr) {
      host.correction = *correction_host;
      device.correction = *correction_device;
    }
    run(cpu_, host);
    run(*gpu_, device);
    queue_->copy_to_host(got.data(), device.ids.data, bytes);
    queue_->wait();
    const std::string what = std::to_string(k) + " of " + std::to_string(experts) + " experts in " +
                             std::to_string(op.top_groups) + "/" + std::to_string(op.groups) +
                             " groups, score " + std::to_string(static_cast<int>(op.score));
    EXPECT_EQ(got, want) << what;
    EXPECT_LT(error_of(weights), 3e-6) << what;
  }
};

TEST_F(GpuExperts, RoutesAgree) {
  for (const RouterScore score : {RouterScore::softmax, RouterScore::softmax_chosen, RouterScore::sigmoid}) {
    for (const auto& [experts, k] :
         {std::pair<int64_t, int64_t>{1, 1}, {8, 2}, {32, 4}, {128, 8}, {500, 40}, {6000, 8}}) {
      for (const bool renormalize : {false, true}) {
        const Twin logits = random({19, experts}, DType::f32, 2),
                   correction = random({experts}, DType::f32, 0.2f);
        const RouteExperts op{.score = score, .renormalize = renormalize, .scale = renormalize ? 2.5f : 1};
        expect_routes_agree(op, 19, experts, k, logits);
        expect_routes_agree(op, 19, experts, k, logits, &correction.host, &correction.device);
      }
    }
    for (const auto& [groups, top] : {std::pair<int32_t, int32_t>{8, 4}, {4, 1}, {64, 9}, {128, 100}}) {
      const Twin logits = random({50, 128}), correction = random({128});
      const RouteExperts op{.score = score, .groups = groups, .top_groups = top, .renormalize = true};
      expect_routes_agree(op, 50, 128, 6, logits, &correction.host, &correction.device);
    }
  }
}

TEST_F(GpuExperts, EqualExpertsAreTakenFromTheLowestIdAndNotANumberGivesDistinctOnes) {
  const Twin equal = twin(std::vector<float>(64, 1), DType::f32, {2, 32});
  expect_routes_agree({.score = RouterScore::sigmoid}, 2, 32, 5, equal);
  std::vector<float> values(40, std::nanf(""));
  values[7] = 1;
  const Twin logits = twin(values, DType::f32, {1, 40}), weights = nans({1, 6});
  const std::vector<int32_t> poison(6, -7);
  const Tensor ids = make_tensor(upload(poison.data(), 24), DType::i32, {1, 6}, device_);
  run(*gpu_, RouteExperts{.ids = ids, .weights = weights.device, .logits = logits.device});
  std::vector<int32_t> got(6);
  queue_->copy_to_host(got.data(), ids.data, 24);
  queue_->wait();
  std::sort(got.begin(), got.end());
  EXPECT_TRUE(got.front() >= 0 && got.back() < 40 && std::adjacent_find(got.begin(), got.end()) == got.end());
}

TEST_F(GpuExperts, SigmoidScaleAndTheNormOverAllHeadsAgree) {
  const Twin x = random({5, 77}), logits = random({5, 1});
  SigmoidScale host{x.host, logits.host}, device{x.device, logits.device};
  run(cpu_, host);
  run(*gpu_, device);
  EXPECT_LT(error_of(x), 1e-6);
  const Twin y = random({9, 300}), weight = random({300});
  run(cpu_, SpreadRmsNorm{y.host, weight.host, 300, 1, 1e-6f});
  run(*gpu_, SpreadRmsNorm{y.device, weight.device, 300, 1, 1e-6f});
  EXPECT_LT(error_of(y), 1e-6);
}

constexpr DType kBf16 = DType::bf16, kFp8 = DType::f8e4m3, kFp4 = DType::f4e2m1x2,
                kPieces = DType::mxfp4_8x64;  // on Hopper only

// Ids [tokens, k] of experts; this rank has `local` of them from `first` on.
struct Uses {
  std::vector<int32_t> ids;
  int64_t tokens, k, first, local;
};

class GpuExpertsOfAllKinds : public GpuExperts {
 protected:
  // `variant` chooses biases and the activation.
  void expect_experts_agree(const ExpertsCase& c, Uses uses, int variant) {
    const auto [ids, tokens, k, first, local] = uses;
    const bool pieces = c.gate_up == kPieces || c.down == kPieces;
    if (pieces && queue_->capability() != 90) return;
    ExpertsTwin twins(rng_, c, local, variant % 2 == 0);
    twins.placed_at(upload(twins.bytes().data(), static_cast<int64_t>(twins.bytes().size())), device_);
    const Twin x = random({tokens, c.hidden}), weights = random({tokens, k}), out = nans({tokens, c.hidden});
    MoeExperts host{.out = out.host, .x = x.host, .weights = weights.host};
    host.ids = make_tensor(uses.ids.data(), DType::i32, {tokens, k});
    host.gate_up = twins.host.gate_up;
    host.down = twins.host.down;
    host.gate_up_bias = twins.host.gate_up_bias;
    host.down_bias = twins.host.down_bias;
    host.first_expert = first;
    host.activation = variant % 5 < 2 ? ExpertActivation::clamped_swiglu : ExpertActivation::silu;
    host.limit = 1.5f;
    host.alpha = 1.702f;
    host.precision = Precision::fast;
    MoeExperts device = host;
    device.out = out.device;
    device.x = x.device;
    device.weights = weights.device;
    device.ids = make_tensor(upload(ids.data(), static_cast<int64_t>(4 * ids.size())), DType::i32,
                             {tokens, k}, device_);
    device.gate_up = twins.device.gate_up;
    device.down = twins.device.down;
    device.gate_up_bias = twins.device.gate_up_bias;
    device.down_bias = twins.device.down_bias;
    const std::string what = std::string(dtype_name(c.gate_up)) + "/" + dtype_name(c.down) + " " +
                             std::to_string(c.hidden) + "x" + std::to_string(c.inter) + " tokens " +
                             std::to_string(tokens) + " k " + std::to_string(k) + " experts " +
                             std::to_string(local) + " from " + std::to_string(first);
    const bool packed = c.gate_up != DType::f32 && c.gate_up != DType::f16 && c.hidden != 33;
    const int entries = pieces ? 1 : packed ? tokens * k <= 32 ? 3 : 2 : 1;
    expect_entries_agree(host, device, out, 1e-5, 2e-2, what, entries);
    // Added to what is there.
    std::vector<float> before(static_cast<size_t>(out.host.elements()), 0.5f);
    queue_->copy_to_device(out.device.data, before.data(), out.device.bytes());
    device.accumulate = true;
    run(*gpu_, device);
    const auto twice = floats_of(out.device);
    double difference = 0, size = 0;
    for (size_t i = 0; i < twice.size(); ++i) {
      const double want = out.host.as<float>()[i] + 0.5;
      difference += (twice[i] - want) * (twice[i] - want);
      size += want * want;
    }
    EXPECT_LT(std::sqrt(difference / size), 2e-2) << "accumulated, " << what;
    // The same, added to the residual by what follows.
    const Twin residual = random({tokens, c.hidden});
    queue_->copy_to_device(out.device.data, before.data(), out.device.bytes());
    run(*gpu_, device);
    run(*gpu_, AddRmsNorm{.residual = residual.device, .add = out.device});
    const auto added = floats_of(residual.device);
    for (size_t i = 0; i < added.size(); ++i) {
      ASSERT_NEAR(added[i], residual.host.as<float>()[i] + twice[i], 1e-4 * (1 + std::abs(twice[i]))) << what;
    }
    memory_.clear();
    buffers_.clear();
  }
};

TEST_F(GpuExpertsOfAllKinds, ExpertsAgree) {
  int variant = 0;
  for (const ExpertsCase& c : {ExpertsCase{DType::f32, DType::f32, 40, 24},
                               {DType::f16, DType::f16, 40, 24},
                               {kBf16, kBf16, 40, 24},
                               {kBf16, kBf16, 33, 15},  // not aligned
                               {kBf16, kBf16, 264, 520, true},
                               {kFp8, kFp8, 272, 160, true},
                               {kFp8, kFp8, 512, 128},
                               {kFp8, kFp8, 256, 96},  // up begins within a block of scales
                               {kFp8, kFp8, 144, 208},
                               {kFp8, kBf16, 144, 80, true},
                               {kFp4, kFp4, 96, 160},
                               {kFp4, kFp4, 1440, 352},
                               {kFp4, kBf16, 64, 64},
                               {kBf16, kFp4, 64, 96},
                               {kPieces, kPieces, 96, 160},
                               {kPieces, kPieces, 1440, 352},
                               {kPieces, kBf16, 64, 64},
                               {kBf16, kPieces, 64, 96}}) {
    for (const int64_t tokens : {1, 3, 8, 21, 45, 140}) {
      for (const int64_t k : {1, 4}) {
        ++variant;
        const bool here_all = variant % 3 != 0;
        const int64_t experts = tokens > 100 ? 5 : 12;
        Uses uses{{}, tokens, k, here_all ? 0 : 3, here_all ? experts : experts - 4};
        std::vector<int32_t> order(static_cast<size_t>(experts));
        for (int64_t e = 0; e < experts; ++e) order[e] = static_cast<int32_t>(e);
        for (int64_t t = 0; t < tokens; ++t) {  // distinct experts of a token; low ones are taken more often
          std::shuffle(order.begin(), order.end(), rng_);
          if (t % 2 == 0) std::sort(order.begin(), order.begin() + experts / 2 + 1);
          uses.ids.insert(uses.ids.end(), order.begin(), order.begin() + k);
        }
        expect_experts_agree(c, uses, variant);
      }
    }
  }
}

TEST_F(GpuExpertsOfAllKinds, OneExpertOfManyOrNoneHasAllUses) {
  int variant = 0;
  for (const DType type : {kBf16, kFp8, kFp4, kPieces}) {
    for (const int32_t expert : {0, 2, 7, 13}) {
      for (const int64_t tokens : {33, 64, 201}) {
        const Uses uses{std::vector<int32_t>(static_cast<size_t>(tokens), expert), tokens, 1, 2, 12};
        expect_experts_agree({type, type, 256, 128}, uses, ++variant);
      }
    }
  }
}

// So many that the blocks of a product have several experts each.
TEST_F(GpuExpertsOfAllKinds, ManySmallExpertsOfAFewUsesEachAgree) {
  int variant = 0;
  for (const ExpertsCase& c : {ExpertsCase{kPieces, kPieces, 96, 160},
                               {kPieces, kPieces, 672, 64},
                               {kFp8, kFp8, 128, 128},
                               {kBf16, kBf16, 64, 128}}) {
    for (const int64_t tokens : {140, 600}) {
      Uses uses{{}, tokens, 4, 0, 300};
      std::uniform_int_distribution<int32_t> any(0, 298);
      for (int64_t use = 0; use < tokens * 4; use += 2) {  // the last expert has none
        const int32_t id = any(rng_);
        uses.ids.insert(uses.ids.end(), {id, (id + 1 + any(rng_) % 298) % 299});
      }
      variant += 2;
      expect_experts_agree(c, uses, variant);
      expect_experts_agree(c, uses, variant + 1);
    }
  }
}

}  // namespace
}  // namespace atom::ops
