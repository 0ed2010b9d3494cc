// Whole mixtures of one row on a GPU against the same ops one after the other on the CPU.
#include <gtest/gtest.h>

#include "ops/gpu/device_test.h"
#include "ops/gpu/experts_twin.h"
#include "ops/moe_block.h"
#include "ops/norm.h"

namespace atom::ops {
namespace {

struct BlockCase {
  ExpertsCase stored;
  int64_t experts = 16, k = 4, tokens = 1;
  int64_t first = 0, local = 16;  // experts of this rank
  bool shared = true, gated = false, normed = true, biased = false;
  int64_t shared_inter = 0;  // 0: that of the others
  bool fused = true;
};

class GpuBlock : public GpuOps {
 protected:
  void expect_agrees(const BlockCase& c) {
    const auto& [gate_up, down, hidden, inter, apart] = c.stored;
    // The last one is the shared expert if that is stored like the others.
    ExpertsTwin twins(rng_, c.stored, c.local + 1, c.biased);
    twins.placed_at(upload(twins.bytes().data(), static_cast<int64_t>(twins.bytes().size())), device_);
    ExpertsCase other_case = c.stored;
    other_case.inter = c.shared_inter > 0 ? c.shared_inter : inter;
    ExpertsTwin other(rng_, other_case, 1, false);
    other.placed_at(upload(other.bytes().data(), static_cast<int64_t>(other.bytes().size())), device_);
    const int64_t tokens = c.tokens;
    const Twin residual = random({tokens, hidden}), norm = random({hidden}), x = random({tokens, hidden}),
               w = random({c.experts, hidden}, DType::bf16, 2 / std::sqrt(static_cast<float>(hidden))),
               gate = random({1, hidden}, DType::bf16, 2 / std::sqrt(static_cast<float>(hidden))),
               logits = nans({tokens, c.experts}), weights = nans({tokens, c.k}), logit = nans({tokens, 1}),
               h = nans({tokens, other_case.inter}), out = nans({tokens, hidden});
    std::vector<int32_t> ids(static_cast<size_t>(tokens * c.k), -7);
    const Tensor host_ids = make_tensor(ids.data(), DType::i32, {tokens, c.k});
    const Tensor device_ids = make_tensor(upload(ids.data(), static_cast<int64_t>(4 * ids.size())),
                                          DType::i32, {tokens, c.k}, device_);
    auto block_of = [&](Tensor Twin::*side, const ExpertsTwin::Side& all, const ExpertsTwin::Side& own,
                        const Tensor& chosen, std::span<const WeightPart> router,
                        std::span<const WeightPart> row) {
      MoeBlock op;
      op.route.logits = {logits.*side, x.*side, {router, c.experts, hidden}};
      op.route.route = {.ids = chosen,
                        .weights = weights.*side,
                        .logits = logits.*side,
                        .score = RouterScore::sigmoid,
                        .renormalize = true,
                        .scale = 1.5f};
      const auto count = static_cast<size_t>(c.local);
      op.experts = {.out = out.*side, .x = x.*side, .ids = chosen, .weights = weights.*side};
      op.experts.gate_up = std::span(all.gate_up).first(count);
      op.experts.down = std::span(all.down).first(count);
      if (c.biased) {
        op.experts.gate_up_bias = std::span(all.gate_up_bias).first(count);
        op.experts.down_bias = std::span(all.down_bias).first(count);
      }
      op.experts.first_expert = c.first;
      op.experts.precision = Precision::fast;
      op.experts.accumulate = c.shared;
      if (!c.shared) return op;
      if (c.gated) op.route.also = {logit.*side, x.*side, {row, 1, hidden}, {}, Precision::fast};
      const ExpertsTwin::Side& from = c.shared_inter > 0 ? own : all;
      op.shared_up = {h.*side, x.*side, from.gate_up.back(), {}, Activation::silu, Precision::fast};
      op.shared_down = {out.*side, h.*side, from.down.back(), {}, Precision::fast};
      return op;
    };
    const std::vector<WeightPart> host_w = {{w.host, {}}}, device_w = {{w.device, {}}},
                                  host_gate = {{gate.host, {}}}, device_gate = {{gate.device, {}}};
    const MoeBlock host = block_of(&Twin::host, twins.host, other.host, host_ids, host_w, host_gate);
    const MoeBlock device =
        block_of(&Twin::device, twins.device, other.device, device_ids, device_w, device_gate);
    const std::string what =
        fmt::format("{}/{} {}x{} {} of {}, {}+{} here{}{}{}{}", dtype_name(gate_up), dtype_name(down), hidden,
                    inter, c.k, c.experts, c.first, c.local, c.shared ? " shared" : "",
                    c.gated ? " gated" : "", c.normed ? " normed" : "", c.biased ? " biased" : "");
    EXPECT_EQ(gpu_impls<MoeBlock>().front().refuse(*gpu_, device) == nullptr, c.fused) << what;
    if (c.normed) run(cpu_, RmsNorm{x.host, residual.host, norm.host, 1e-5f, 1});
    run(cpu_, host);
    const Twin sum = random({tokens, hidden});
    for (int repeat = 0; repeat < 3; ++repeat) {
      const std::vector<float> poison(static_cast<size_t>(tokens * hidden), std::nanf(""));
      queue_->copy_to_device(out.device.data, poison.data(), out.device.bytes());
      if (c.normed) queue_->copy_to_device(x.device.data, poison.data(), x.device.bytes());
      if (c.normed) run(*gpu_, RmsNorm{x.device, residual.device, norm.device, 1e-5f, 1});
      run(*gpu_, device);
      if (repeat < 2) {
        EXPECT_LT(error_of(out), 2e-2) << what;
        EXPECT_LT(error_of(x), 1e-5) << what;
        continue;
      }
      // Added to the residual by what follows.
      run(*gpu_, AddRmsNorm{.residual = sum.device, .add = out.device});
      for (int64_t i = 0; i < tokens * hidden; ++i) sum.host.as<float>()[i] += out.host.as<float>()[i];
      EXPECT_LT(error_of(sum), 2e-2) << what;
    }
    memory_.clear();
    buffers_.clear();
  }
};

constexpr DType kBf16 = DType::bf16, kFp8 = DType::f8e4m3, kFp4 = DType::f4e2m1x2,
                kPieces = DType::mxfp4_8x64;  // on Hopper only

TEST_F(GpuBlock, MixturesOfOneRowAgree) {
  int variant = 0;
  for (const ExpertsCase& stored : {ExpertsCase{kBf16, kBf16, 64, 32},
                                    {kBf16, kBf16, 264, 520, true},
                                    {kBf16, kBf16, 2048, 512},
                                    {kFp8, kFp8, 512, 256},
                                    {kFp8, kFp8, 272, 160, true},
                                    {kFp8, kBf16, 144, 80, true},
                                    {kFp8, kFp8, 3072, 384},
                                    {kFp4, kFp4, 512, 256},
                                    {kFp4, kBf16, 256, 72},
                                    {kPieces, kPieces, 512, 256},
                                    {kPieces, kPieces, 1440, 352},
                                    {kPieces, kBf16, 256, 72}}) {
    if (stored.gate_up == kPieces && queue_->capability() != 90) continue;
    for (const auto& [experts, k] : {std::pair<int64_t, int64_t>{7, 3}, {8, 1}, {24, 11}, {40, 31}}) {
      if (experts > 8 && stored.hidden * stored.inter > 50'000) continue;  // their making takes long
      for (const bool shared : {false, true}) {
        if (shared && stored.gate_up == kPieces) continue;  // no product of one expert's
        ++variant;
        const bool all = variant % 3 != 0;
        expect_agrees({.stored = stored,
                       .experts = experts,
                       .k = k,
                       .first = all ? 0 : 3,
                       .local = all ? experts : experts - 4,
                       .shared = shared,
                       .gated = shared && variant % 4 < 2,
                       .normed = variant % 5 != 0,
                       .biased = !shared && variant % 2 == 0,
                       .fused = stored.gate_up != kPieces});
      }
    }
  }
}

TEST_F(GpuBlock, OtherSharedExpertsAndSeveralRowsAreComposed) {
  const ExpertsCase stored{kBf16, kBf16, 128, 64};
  expect_agrees({.stored = stored, .shared_inter = 32, .fused = false});
  expect_agrees({.stored = stored, .gated = true, .shared_inter = 96, .fused = false});
  expect_agrees({.stored = stored, .tokens = 3, .gated = true, .fused = false});
  expect_agrees({.stored = stored, .experts = 40, .k = 32, .local = 40, .fused = false});  // 33 uses
  expect_agrees({.stored = {DType::f32, DType::f32, 128, 64}, .fused = false});
}

}  // namespace
}  // namespace atom::ops
