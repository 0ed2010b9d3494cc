// The scheduler's interface: refusals, contracts, determinism. Scenarios are scripts: see
// scheduler_script_test.cc.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "scheduler/fake_device.h"

namespace atom {
namespace {

SchedulerConfig small_config(int64_t blocks = 16) {
  SchedulerConfig config;
  config.groups = {{.kind = CacheKind::paged, .blocks = blocks}};
  config.block_size = 4;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 16;
  config.max_model_len = 64;
  return config;
}

SequenceSpec prompt(int32_t first, int64_t count, int64_t max_tokens, int priority = 0) {
  SequenceSpec spec{.prompt = std::vector<int32_t>(count), .max_tokens = max_tokens, .priority = priority};
  std::iota(spec.prompt.begin(), spec.prompt.end(), first);
  return spec;
}

int32_t by_position(Digest, int64_t position) { return static_cast<int32_t>(position); }

// Steps until idle or `most` steps; the number of steps made.
int run(Scheduler& scheduler, FakeDevice& device, int most = 1000) {
  int steps = 0;
  for (; steps < most && !scheduler.idle(); ++steps)
    scheduler.commit(device.run(scheduler.plan(), scheduler));
  return steps;
}

std::string refusal(const SchedulerConfig& config) {
  try {
    Scheduler scheduler(config);
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

TEST(Scheduler, RefusesAConfigThatCannotWork) {
  EXPECT_EQ(refusal(small_config()), "accepted");
  SchedulerConfig config = small_config();
  config.max_num_seqs = 0;
  EXPECT_NE(refusal(config).find("max-num-seqs is 0"), std::string::npos);
  config = small_config();
  config.groups.clear();
  EXPECT_NE(refusal(config).find("no cache groups"), std::string::npos);
  config = small_config();
  config.groups.push_back({.kind = CacheKind::window, .window = 9, .blocks = 2});
  EXPECT_NE(refusal(config).find("needs at least 3"), std::string::npos) << refusal(config);
  EXPECT_NE(refusal(small_config(0)), "accepted");
}

TEST(Scheduler, RefusesARequestThatCannotBeServed) {
  Scheduler scheduler(small_config());
  EXPECT_EQ(scheduler.add({}).error().message(), "the prompt is empty");
  EXPECT_EQ(scheduler.add(prompt(1, 3, -1)).error().code(), Errc::invalid);
  EXPECT_FALSE(scheduler.add(prompt(1, 64, 1)).ok());
  EXPECT_TRUE(scheduler.add(prompt(1, 64, 0)).ok());
}

TEST(Scheduler, UnlimitedOutputEndsAtTheModelLength) {
  Scheduler scheduler(small_config());
  FakeDevice device(small_config(), by_position);
  SequenceSpec spec = prompt(1, 3, 0);
  spec.max_tokens = SequenceSpec().max_tokens;
  ASSERT_TRUE(scheduler.add(spec).ok());
  run(scheduler, device);
  const std::vector<FinishedSequence> ended = scheduler.take_finished();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].reason, FinishReason::length);
  EXPECT_EQ(ended[0].output.size(), 61);
}

TEST(Scheduler, SeatsLeaveDecodesTheirTokensAndPrefillsAQuarter) {
  for (int64_t batched = 1; batched < 200; ++batched) {
    SchedulerConfig config = small_config();
    config.max_num_seqs = 1000;
    config.max_num_batched_tokens = batched;
    const int64_t seats = Scheduler(config).seats();
    EXPECT_GE(seats, 1);
    EXPECT_LE(seats, batched);
    EXPECT_GE(batched - (seats - 1), std::max<int64_t>(1, batched / 4));
  }
}

TEST(Scheduler, IsDeterministic) {
  std::string first;
  for (int round = 0; round < 2; ++round) {
    Scheduler scheduler(small_config(12));
    FakeDevice device(small_config(12), by_position);
    std::string log;
    for (int i = 0; i < 12; ++i) {
      ASSERT_TRUE(scheduler.add(prompt(i % 3, 5 + i, 9, i % 2)).ok());
      const StepPlan& plan = scheduler.plan();
      log += to_string(plan);
      scheduler.commit(device.run(plan, scheduler));
    }
    if (round == 0) first = log;
    EXPECT_EQ(log, first);
  }
}

TEST(Scheduler, CancellingTwiceOrAStrangerIsHarmless) {
  Scheduler scheduler(small_config());
  FakeDevice device(small_config(), by_position);
  const SequenceId id = scheduler.add(prompt(1, 5, 5)).value();
  const StepPlan& plan = scheduler.plan();
  EXPECT_TRUE(scheduler.cancel(id));
  EXPECT_FALSE(scheduler.cancel(id));
  EXPECT_FALSE(scheduler.cancel(77));
  scheduler.commit(device.run(plan, scheduler));
  EXPECT_FALSE(scheduler.cancel(id));
  EXPECT_EQ(scheduler.take_finished().size(), 1);
  EXPECT_TRUE(scheduler.take_finished().empty());
  EXPECT_TRUE(scheduler.plan().empty());
}

TEST(Scheduler, CountsWhatIsReusedInStats) {
  Scheduler scheduler(small_config());
  FakeDevice device(small_config(), by_position);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(scheduler.add(prompt(1, 9, 1)).ok());
    run(scheduler, device);
  }
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(stats.prompt_tokens, 27);
  EXPECT_EQ(stats.hit_tokens, 16);
  EXPECT_EQ(stats.groups[0].used, 0);
  EXPECT_EQ(stats.groups[0].cached_free, 2);
}

TEST(Scheduler, PromptLogitsAreGivenOnceEvenAfterPreemption) {
  SchedulerConfig config = small_config(5);
  Scheduler scheduler(config);
  FakeDevice device(config, by_position);
  ASSERT_TRUE(scheduler.add(prompt(1, 8, 8)).ok());
  SequenceSpec spec = prompt(21, 4, 8);
  spec.prompt_logits = true;
  const SequenceId id = scheduler.add(spec).value();
  int64_t prompt_rows = 0;
  while (!scheduler.idle()) {
    const StepPlan& plan = scheduler.plan();
    for (const PlannedSequence& part : plan.sequences) {
      const int64_t in_prompt = std::min<int64_t>(4, part.context + part.tokens) - part.context;
      if (part.id == id && in_prompt > 0 && part.logit_rows > 1) prompt_rows += part.logit_rows;
    }
    scheduler.commit(device.run(plan, scheduler));
  }
  EXPECT_EQ(scheduler.stats().preemptions, 1);
  EXPECT_EQ(prompt_rows, 4);
}

TEST(Scheduler, AHigherPriorityCountsSharedBlocksRight) {
  // Two low twins share 4 of their blocks: only preempting both gives those back.
  SchedulerConfig config = small_config(8);
  Scheduler scheduler(config);
  FakeDevice device(config, by_position);
  ASSERT_TRUE(scheduler.add(prompt(1, 17, 8, 5)).ok());
  ASSERT_TRUE(scheduler.add(prompt(1, 17, 8, 5)).ok());
  run(scheduler, device, 3);
  ASSERT_EQ(scheduler.stats().running, 2);
  ASSERT_EQ(scheduler.stats().groups[0].used, 6);
  const SequenceId high = scheduler.add(prompt(101, 16, 2, 1)).value();
  run(scheduler, device, 1);
  EXPECT_EQ(scheduler.find(high)->state, Sequence::State::running);
  EXPECT_EQ(scheduler.stats().preemptions, 2);
  run(scheduler, device);
  for (const FinishedSequence& ended : scheduler.take_finished())
    EXPECT_EQ(ended.reason, FinishReason::length);
}

TEST(Scheduler, ALongPromptIsNotStarvedByShortOnes) {
  SchedulerConfig config = small_config(8);
  config.max_num_seqs = 8;
  Scheduler scheduler(config);
  FakeDevice device(config, by_position);
  ASSERT_TRUE(scheduler.add(prompt(1, 4, 8)).ok());
  run(scheduler, device, 1);
  const SequenceId large = scheduler.add(prompt(1000, 28, 1)).value();
  // Two short ones arrive each step, for ever.
  int step = 0;
  for (; step < 200 && scheduler.find(large) != nullptr; ++step) {
    ASSERT_TRUE(scheduler.add(prompt(2000 + 100 * step, 3, 3)).ok());
    ASSERT_TRUE(scheduler.add(prompt(2050 + 100 * step, 3, 3)).ok());
    run(scheduler, device, 1);
  }
  EXPECT_LT(step, 60);
  EXPECT_GT(step, 8);  // and short ones did pass
}

TEST(Scheduler, AShortPromptIsNotHeldUpByALongOne) {
  SchedulerConfig config = small_config(64);
  config.max_model_len = 256;
  Scheduler scheduler(config);
  FakeDevice device(config, by_position);
  ASSERT_TRUE(scheduler.add(prompt(1, 200, 1)).ok());
  const SequenceId small = scheduler.add(prompt(1000, 4, 1)).value();
  run(scheduler, device, 1);
  EXPECT_EQ(scheduler.find(small), nullptr);
}

TEST(Scheduler, MayBeSwitchedToNoPrefixCaching) {
  SchedulerConfig config = small_config();
  config.prefix_caching = false;
  Scheduler scheduler(config);
  FakeDevice device(config, by_position);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(scheduler.add(prompt(1, 9, 1)).ok());
    run(scheduler, device);
    EXPECT_EQ(scheduler.take_finished().at(0).reuse.stop, ReuseStop::disabled);
  }
  EXPECT_EQ(scheduler.stats().hit_tokens, 0);
  EXPECT_EQ(scheduler.stats().groups[0].cached_free, 0);
}

TEST(SchedulerDeathTest, OnePlanIsInFlightAtMost) {
  Scheduler scheduler(small_config());
  ASSERT_TRUE(scheduler.add(prompt(1, 5, 5)).ok());
  scheduler.plan();
  EXPECT_DEATH(scheduler.plan(), "is not committed");
}

TEST(SchedulerDeathTest, AResultMustAnswerThePlan) {
  Scheduler scheduler(small_config());
  ASSERT_TRUE(scheduler.add(prompt(1, 5, 5)).ok());
  StepResult result{.step = scheduler.plan().step};
  EXPECT_DEATH(scheduler.commit(result), "result of step 1 for 0 sequences");
  result.add(0, {});
  EXPECT_DEATH(scheduler.commit(result), "got 0 tokens");
  result.sequences[0].id = 9;
  EXPECT_DEATH(scheduler.commit(result), "for sequence 9, planned was 0");
}

SchedulerConfig state_config(int64_t blocks, int64_t slot_blocks) {
  SchedulerConfig config = small_config(blocks);
  config.states = {.slot_blocks = slot_blocks, .slots = blocks / slot_blocks};
  return config;
}

// The sequence that ends when nothing else runs.
FinishedSequence run_alone(Scheduler& scheduler, FakeDevice& device, SequenceSpec spec) {
  EXPECT_TRUE(scheduler.add(std::move(spec)).ok());
  run(scheduler, device);
  std::vector<FinishedSequence> ended = scheduler.take_finished();
  EXPECT_EQ(ended.size(), 1u);
  return ended.at(0);
}

TEST(SchedulerState, ASecondPromptResumesFromTheSnapshotAtItsLastFullBlock) {
  Scheduler scheduler(state_config(32, 3));
  FakeDevice device(state_config(32, 3), by_position);
  EXPECT_EQ(run_alone(scheduler, device, prompt(1, 12, 2)).reuse.tokens, 0);
  // Blocks 0-3 and 4-7 end before the last token; the third block ends with it.
  EXPECT_EQ(run_alone(scheduler, device, prompt(1, 12, 2)).reuse.tokens, 8);
  EXPECT_EQ(scheduler.stats().groups.front().used, 0);
}

TEST(SchedulerState, APrefixWithoutASnapshotIsAMissAndLeavesOne) {
  Scheduler scheduler(state_config(32, 3));
  FakeDevice device(state_config(32, 3), by_position);
  run_alone(scheduler, device, prompt(1, 14, 1));  // a snapshot after 12 tokens
  SequenceSpec other = prompt(1, 14, 1);
  other.prompt[9] = 500;  // 8 tokens in common, and no snapshot there
  const FinishedSequence miss = run_alone(scheduler, device, other);
  EXPECT_EQ(miss.reuse.tokens, 0);
  EXPECT_EQ(miss.reuse.stop, ReuseStop::no_state);
  SequenceSpec third = prompt(1, 14, 1);
  third.prompt[8] = 600;
  EXPECT_EQ(run_alone(scheduler, device, third).reuse.tokens, 8);
}

TEST(SchedulerState, SequencesThatArriveTogetherShareWhatTheyHaveInCommon) {
  Scheduler scheduler(state_config(40, 3));
  FakeDevice device(state_config(40, 3), by_position);
  ASSERT_TRUE(scheduler.add(prompt(1, 12, 2)).ok());
  SequenceSpec other = prompt(1, 12, 2);
  other.prompt[9] = 500;
  ASSERT_TRUE(scheduler.add(other).ok());
  run(scheduler, device);
  const std::vector<FinishedSequence> ended = scheduler.take_finished();
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].reuse.tokens + ended[1].reuse.tokens, 8);
}

TEST(SchedulerState, SlotsCostBlocksOnlyWhileTheyAreUsed) {
  Scheduler scheduler(state_config(16, 5));
  FakeDevice device(state_config(16, 5), by_position);
  ASSERT_TRUE(scheduler.add(prompt(1, 5, 3)).ok());
  ASSERT_TRUE(scheduler.add(prompt(100, 5, 3)).ok());
  const StepPlan plan = scheduler.plan();
  EXPECT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(scheduler.stats().groups.front().used, 2 * (5 + 2));
  scheduler.commit(device.run(plan, scheduler));
  run(scheduler, device);
  EXPECT_EQ(scheduler.stats().groups.front().used, 0);
  // Alone, a prompt may have all but one slot's worth.
  EXPECT_TRUE(scheduler.add(prompt(1, 44, 0)).ok());
  EXPECT_FALSE(scheduler.add(prompt(1, 45, 0)).ok());
  run(scheduler, device);
}

}  // namespace
}  // namespace atom
