// Models with recurrent state on the engine: whatever happens to a sequence's slot, its tokens are the same.
#include <gtest/gtest.h>

#include <map>

#include "engine/engine.h"
#include "engine/test_requests.h"

namespace atom {
namespace {

ModelOptions hybrid() { return golden_model("qwen3_5_dense", 80, /*threads=*/1); }

struct Outcome {
  std::vector<int32_t> ids;
  Usage usage;
};

// Submits and collects; outcomes are valid once the engine is idle.
class Runner {
 public:
  explicit Runner(const ModelOptions& options) : model_(options) {}
  Engine& engine() { return model_.engine(); }
  const CachePlan& plan() const { return model_.cache_plan(); }

  RequestId submit(std::vector<int32_t> prompt, int64_t max_tokens) {
    return engine()
        .submit(request_of(std::move(prompt), max_tokens),
                [this](OutputDelta&& d) {
                  Outcome& outcome = outcomes_[d.request];
                  outcome.ids.insert(outcome.ids.end(), d.token_ids.begin(), d.token_ids.end());
                  if (d.finish) outcome.usage = d.usage;
                })
        .take();
  }
  void finish() {
    for (int i = 0; engine().step(); ++i) ASSERT_LT(i, 100000) << "no end";
  }
  const Outcome& of(RequestId id) { return outcomes_[id]; }
  Outcome run(std::vector<int32_t> prompt, int64_t max_tokens) {
    const RequestId id = submit(std::move(prompt), max_tokens);
    finish();
    return of(id);
  }

 private:
  LoadedModel model_;
  std::map<RequestId, Outcome> outcomes_;
};

std::vector<int32_t> alone(std::vector<int32_t> prompt, int64_t max_tokens) {
  ModelOptions o = hybrid();
  o.prefix_caching = false;
  return Runner(o).run(std::move(prompt), max_tokens).ids;
}

TEST(Recurrent, AnyCutOfThePromptGivesTheSameTokens) {
  const std::vector<int32_t> reference = alone(prompt_of(70, 1), 8);
  for (const int64_t chunk : {1, 2, 5, 64}) {
    for (const int64_t block : {1, 16}) {
      ModelOptions o = hybrid();
      o.max_num_seqs = 1;
      o.max_num_batched_tokens = chunk;
      o.block_size = block;
      EXPECT_EQ(Runner(o).run(prompt_of(70, 1), 8).ids, reference) << "chunk " << chunk << " block " << block;
    }
  }
}

TEST(Recurrent, BatchMatesAndRanksDoNotMatter) {
  std::vector<std::vector<int32_t>> reference;
  for (int i = 0; i < 6; ++i) reference.push_back(alone(prompt_of(5 + 7 * i, i), 12));
  for (const auto& [tp, pp] : {std::pair(1, 1), {2, 1}, {1, 2}, {4, 1}}) {
    ModelOptions o = hybrid();
    o.tp = tp;
    o.pp = pp;
    o.max_num_batched_tokens = 24;
    Runner runner(o);
    std::vector<RequestId> ids;
    for (int i = 0; i < 6; ++i) {
      ids.push_back(runner.submit(prompt_of(5 + 7 * i, i), 12));
      if (i % 2 == 1) runner.engine().step();  // arrivals while others run
    }
    runner.finish();
    for (int i = 0; i < 6; ++i) EXPECT_EQ(runner.of(ids[i]).ids, reference[i]) << "tp " << tp << " pp " << pp;
  }
}

TEST(Recurrent, APrefixHitGivesTheTokensOfAMiss) {
  Runner runner(hybrid());
  const Outcome first = runner.run(prompt_of(12, 1), 10), second = runner.run(prompt_of(12, 1), 10);
  EXPECT_EQ(first.usage.cached_tokens, 0);
  EXPECT_EQ(second.usage.cached_tokens, 8);
  EXPECT_EQ(second.ids, first.ids);
  // A follow-up of the conversation resumes from the end of its first prompt.
  std::vector<int32_t> follow = prompt_of(12, 1);
  follow.insert(follow.end(), first.ids.begin(), first.ids.end());
  const Outcome third = runner.run(follow, 10);
  EXPECT_EQ(third.usage.cached_tokens, 8);
  EXPECT_EQ(third.usage.reuse_stop, ReuseStop::no_state);
  EXPECT_EQ(third.ids, alone(follow, 10));
}

TEST(Recurrent, PromptsWithACommonBeginningKeepTheirOwnTokens) {
  std::vector<int32_t> a = prompt_of(12, 1), b = a;
  for (size_t i = 8; i < b.size(); ++i) b[i] = (b[i] + 17) % 96;
  const std::vector<int32_t> want_a = alone(a, 10), want_b = alone(b, 10);
  EXPECT_NE(want_a, want_b);
  for (const bool together : {true, false}) {
    Runner runner(hybrid());
    const RequestId first = runner.submit(a, 10);
    if (!together) runner.finish();
    const RequestId second = runner.submit(b, 10);
    runner.finish();
    EXPECT_EQ(runner.of(first).ids, want_a);
    EXPECT_EQ(runner.of(second).ids, want_b);
    EXPECT_LE(runner.of(second).usage.cached_tokens, 8);
  }
}

TEST(Recurrent, ASlotIsCleanForItsNextSequence) {
  ModelOptions o = hybrid();
  o.max_num_seqs = 1;
  Runner runner(o);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(runner.run(prompt_of(9 + i, i), 10).ids, alone(prompt_of(9 + i, i), 10));
}

TEST(Recurrent, PreemptedSequencesContinueWhereTheyWere) {
  ModelOptions o = hybrid();
  o.max_model_len = 28;
  Runner sizes(o);
  const int64_t blocks = sizes.plan().groups.front().blocks, slot = sizes.plan().states.slot_blocks;
  // Two sequences of 12 tokens can be admitted; grown to 24 they do not fit beside each other.
  o.kv_cache_bytes = sizes.plan().used_bytes / blocks * (2 * slot + 9);
  Runner runner(o);
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(runner.submit(prompt_of(12, i), 12));
  runner.finish();
  EXPECT_GT(runner.engine().stats().scheduler.preemptions, 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(runner.of(ids[i]).ids, alone(prompt_of(12, i), 12));
  EXPECT_EQ(runner.engine().stats().scheduler.groups.front().used, 0);
}

TEST(Recurrent, CancellingGivesTheSlotBack) {
  Runner runner(hybrid());
  const RequestId id = runner.submit(prompt_of(20, 0), 50);
  for (int i = 0; i < 3; ++i) runner.engine().step();
  EXPECT_GT(runner.engine().stats().scheduler.groups.front().used, 0);
  runner.engine().cancel(id);
  EXPECT_FALSE(runner.engine().step());
  EXPECT_EQ(runner.engine().stats().scheduler.groups.front().used, 0);
}

}  // namespace
}  // namespace atom
