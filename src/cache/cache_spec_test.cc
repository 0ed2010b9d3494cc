// The byte planner.
#include "cache/cache_spec.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace atom {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// 8 KV heads of 64, bf16, K and V: 2048 bytes per token and layer; a window of 128 on every second layer.
std::vector<CacheSpec> gpt_oss_20b() {
  std::vector<CacheSpec> specs;
  for (int layer = 0; layer < 24; ++layer) {
    specs.push_back(layer % 2 == 0 ? CacheSpec{CacheKind::window, 2048, 128}
                                   : CacheSpec{CacheKind::paged, 2048, 0});
  }
  return specs;
}

CacheLimits limits(int64_t budget, int64_t seqs = 32, int64_t len = 8192) {
  return {.budget_bytes = budget,
          .block_size = 16,
          .max_num_seqs = seqs,
          .max_model_len = len,
          .max_num_batched_tokens = 2048};
}

std::string refusal(std::span<const CacheSpec> specs, const CacheLimits& limits) {
  try {
    plan_cache(specs, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::invalid);
    return error.message();
  }
  return "accepted";
}

TEST(CacheBytes, WindowLayersCostTheirWindowOnly) {
  const std::vector<CacheSpec> all_full(24, CacheSpec{CacheKind::paged, 2048, 0});
  EXPECT_EQ(32 * cache_bytes(all_full, 8192), 12 * kGiB);
  // 12 full layers: 6 GiB; 12 windows of 128 tokens in 32 sequences: 96 MiB.
  EXPECT_EQ(32 * cache_bytes(gpt_oss_20b(), 8192), 6 * kGiB + 96 * (int64_t{1} << 20));
}

TEST(CacheBytes, MatchesKnownModels) {
  const std::vector<CacheSpec> qwen3_32b(64, CacheSpec{CacheKind::paged, 2 * 8 * 128 * 2, 0});
  EXPECT_EQ(cache_bytes(qwen3_32b, 1), 262144);
  const std::vector<CacheSpec> latent(1, CacheSpec{CacheKind::paged, (512 + 64) * 2, 0});
  EXPECT_EQ(cache_bytes(latent, 1), 1152);
}

TEST(CacheBytes, DoesNotOverflow) {
  const std::vector<CacheSpec> specs(1, CacheSpec{CacheKind::paged, 12000, 0});
  EXPECT_EQ(cache_bytes(specs, 201088), 2'413'056'000);
  const std::vector<CacheSpec> huge(8, CacheSpec{CacheKind::paged, int64_t{1} << 32, 0});
  EXPECT_EQ(cache_bytes(huge, int64_t{1} << 31), INT64_MAX);
}

TEST(MostBlocksHeld, CountsTheBlocksThatAWindowTouches) {
  for (int64_t window : {1, 2, 3, 4, 5, 8, 9}) {
    for (int64_t block : {1, 2, 4}) {
      for (int64_t chunk : {1, 2, 3, 4, 7}) {
        int64_t most = 0;
        for (int64_t computed = 0; computed < 64; ++computed) {
          const int64_t end = (computed + chunk + block - 1) / block;
          most = std::max(most, end - first_needed_block(computed, window, block));
        }
        EXPECT_EQ(most_blocks_held(window, block, 1000, chunk), most)
            << window << " " << block << " " << chunk;
      }
    }
  }
  EXPECT_EQ(most_blocks_held(0, 16, 33, 1), 3);
  EXPECT_EQ(most_blocks_held(128, 16, 20, 1), 2);  // never more than the sequence has
}

TEST(FirstNeededBlock, KeepsTheQueryAndWindowMinusOneBefore) {
  EXPECT_EQ(first_needed_block(8, 0, 4), 0);
  EXPECT_EQ(first_needed_block(8, 5, 4), 1);  // sees 4..8
  EXPECT_EQ(first_needed_block(8, 6, 4), 0);  // sees 3..8
  EXPECT_EQ(first_needed_block(2, 6, 4), 0);
}

TEST(PlanCache, GroupsLayersByWindow) {
  std::vector<CacheSpec> specs = {{CacheKind::window, 10, 64},
                                  {CacheKind::paged, 20, 0},
                                  {CacheKind::window, 30, 32},
                                  {CacheKind::window, 40, 64},
                                  {CacheKind::paged, 50, 0}};
  const CachePlan plan = plan_cache(specs, limits(kGiB));
  ASSERT_EQ(plan.groups.size(), 3);
  EXPECT_EQ(plan.groups[0].kind, CacheKind::paged);
  EXPECT_EQ(plan.groups[0].bytes_per_token, 70);
  EXPECT_EQ(plan.groups[1].window, 32);
  EXPECT_EQ(plan.groups[2].window, 64);
  EXPECT_EQ(plan.groups[2].specs, (std::vector<int>{0, 3}));
  EXPECT_EQ(plan.group_of, (std::vector<int>{2, 0, 1, 2, 0}));
}

TEST(PlanCache, TreatsAWindowThatNothingCanLeaveAsPaged) {
  const std::vector<CacheSpec> specs = {{CacheKind::window, 10, 8192}, {CacheKind::paged, 10, 0}};
  EXPECT_EQ(plan_cache(specs, limits(kGiB)).groups.size(), 1);
}

TEST(PlanCache, StaysWithinTheBudgetAndUsesIt) {
  const std::vector<CacheSpec> specs = gpt_oss_20b();
  for (int64_t budget : {kGiB / 4, kGiB, 6 * kGiB, 16 * kGiB}) {
    const CachePlan plan = plan_cache(specs, limits(budget));
    int64_t bytes = 0;
    for (const CacheGroup& group : plan.groups) bytes += group.blocks * 16 * group.bytes_per_token;
    EXPECT_EQ(plan.used_bytes, bytes);
    EXPECT_LE(bytes, budget);
    EXPECT_GT(bytes + 2 * 16 * plan.groups[0].bytes_per_token, budget);
    EXPECT_GE(plan.largest_context, 8192);
  }
}

TEST(PlanCache, GivesWindowsNoMoreThanSequencesCanHold) {
  const CachePlan plan = plan_cache(gpt_oss_20b(), limits(16 * kGiB));
  // 127 earlier tokens and the query touch 9 blocks; a step brings 2048 tokens to all sequences together.
  EXPECT_EQ(plan.groups[1].blocks, 32 * 9 + 2048 / 16);
  EXPECT_GT(plan.groups[0].blocks, 32 * 8192 / 16);
  // 6.09 GiB, one block more per window layer and sequence, and the tokens of one step.
  EXPECT_EQ(plan.full_load_bytes,
            32 * cache_bytes(gpt_oss_20b(), 8192) + (32 * 16 + 2048) * plan.groups[1].bytes_per_token);
}

TEST(PlanCache, GivesWindowsNoMoreBlocksThanThePagedGroup) {
  const CachePlan plan = plan_cache(gpt_oss_20b(), limits(kGiB / 2, 1024, 1024));
  EXPECT_EQ(plan.groups[1].blocks, plan.groups[0].blocks);
}

TEST(PlanCache, MakesWindowsForFewerSequencesBeforeItRefuses) {
  // One long sequence takes 192 MiB of paged blocks, and 9 + 128 window blocks of 384 KiB.
  const int64_t least = 512 * 16 * 24576 + (9 + 128) * 16 * 24576;
  EXPECT_EQ(refusal(gpt_oss_20b(), limits(least)), "accepted");
  EXPECT_NE(refusal(gpt_oss_20b(), limits(least - 1)).find(std::to_string(least)), std::string::npos);
  EXPECT_EQ(plan_cache(gpt_oss_20b(), limits(least)).groups[1].blocks, 9 + 128);
}

TEST(PlanCache, SaysWhatWouldWorkWhenTheBudgetIsTooSmall) {
  const std::vector<CacheSpec> specs(2, CacheSpec{CacheKind::paged, 512, 0});  // 16 KiB per block
  const std::string message = refusal(specs, limits(1 << 20, 1, 8192));
  EXPECT_NE(message.find("needs 8388608 bytes (8.00 MiB)"), std::string::npos) << message;
  EXPECT_NE(message.find("lower max-model-len to 1024 tokens"), std::string::npos) << message;
  // The advice is right, and tight.
  EXPECT_EQ(refusal(specs, limits(8388608, 1, 8192)), "accepted");
  EXPECT_NE(refusal(specs, limits(8388607, 1, 8192)), "accepted");
  EXPECT_EQ(refusal(specs, limits(1 << 20, 1, 1024)), "accepted");
  EXPECT_NE(refusal(specs, limits(1 << 20, 1, 1025)), "accepted");
}

TEST(PlanCache, ServesAModelOfWindowsOnly) {
  const std::vector<CacheSpec> specs(4, CacheSpec{CacheKind::window, 256, 64});
  const CachePlan plan = plan_cache(specs, limits(1 << 20, 4, 1 << 20));
  ASSERT_EQ(plan.groups.size(), 1);
  EXPECT_EQ(plan.groups[0].blocks, (1 << 20) / (16 * 1024));
  EXPECT_EQ(plan.largest_context, INT64_MAX);
}

TEST(PlanCache, AcceptsLayersThatLiveElsewhere) {
  std::vector<CacheSpec> specs(4, CacheSpec{CacheKind::paged, 0, 0});
  specs[2].bytes_per_token = 1024;
  EXPECT_EQ(plan_cache(specs, limits(kGiB)).groups[0].blocks, kGiB / (16 * 1024));
}

TEST(PlanCache, RefusesNonsense) {
  const std::vector<CacheSpec> paged(1, CacheSpec{CacheKind::paged, 512, 0});
  CacheLimits bad = limits(kGiB);
  bad.block_size = 0;
  EXPECT_NE(refusal(paged, bad).find("block size is 0"), std::string::npos);
  bad = limits(-1);
  EXPECT_NE(refusal(paged, bad), "accepted");
  bad = limits(kGiB, 0);
  EXPECT_NE(refusal(paged, bad), "accepted");
  EXPECT_NE(refusal({}, limits(kGiB)), "accepted");
  const std::vector<CacheSpec> no_window(1, CacheSpec{CacheKind::window, 512, 0});
  EXPECT_NE(refusal(no_window, limits(kGiB)), "accepted");
  const std::vector<CacheSpec> odd(1, CacheSpec{CacheKind::paged, 512, 8});
  EXPECT_NE(refusal(odd, limits(kGiB)), "accepted");
  const std::vector<CacheSpec> negative(1, CacheSpec{CacheKind::paged, -1, 0});
  EXPECT_NE(refusal(negative, limits(kGiB)), "accepted");
}

TEST(PlanCache, PrintsTheBill) {
  const std::string text = to_string(plan_cache(gpt_oss_20b(), limits(kGiB)));
  EXPECT_NE(text.find("paged: 12 layers, 24576 bytes/token"), std::string::npos) << text;
  EXPECT_NE(text.find("window 128: 12 layers"), std::string::npos) << text;
}

// Three recurrent layers beside one that caches: Qwen3.5's proportions.
std::vector<CacheSpec> hybrid() {
  std::vector<CacheSpec> specs(3, CacheSpec{.kind = CacheKind::state, .state_bytes = 100'000});
  specs.push_back({CacheKind::paged, 1000, 0});
  return specs;
}

TEST(PlanCache, StateIsPaidForWithBlocks) {
  const CachePlan plan = plan_cache(hybrid(), limits(160'000'000));
  ASSERT_EQ(plan.groups.size(), 1);
  EXPECT_EQ(plan.groups[0].blocks, 10'000);  // of 16 tokens: no block is set aside
  EXPECT_EQ(plan.states.slot_blocks, 19);    // 300 000 bytes in blocks of 16 000
  EXPECT_EQ(plan.states.slots, 10'000 / 19);
  EXPECT_EQ(plan.largest_context, (10'000 - 19) * 16);
  EXPECT_EQ(plan.group_of, (std::vector<int>{-1, -1, -1, 0}));
  EXPECT_EQ(plan.full_load_bytes, 32 * (512 + 19) * 16'000);
  EXPECT_EQ(cache_bytes(hybrid(), 10), 310'000);
}

TEST(PlanCache, OneSequenceNeedsItsStateToo) {
  const int64_t least = (512 + 19) * 16'000;
  EXPECT_EQ(refusal(hybrid(), limits(least)), "accepted");
  const std::string message = refusal(hybrid(), limits(least - 1));
  EXPECT_NE(message.find("lower max-model-len to 8176 tokens"), std::string::npos) << message;
}

TEST(PlanCache, RefusesStateThatNothingPaysFor) {
  const std::vector<CacheSpec> only(2, CacheSpec{.kind = CacheKind::state, .state_bytes = 10});
  EXPECT_NE(refusal(only, limits(kGiB)).find("full-attention layer"), std::string::npos);
}

}  // namespace
}  // namespace atom
