// What a step costs on the host. Times are printed; only gross slowness fails.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "scheduler/scheduler.h"

namespace atom {
namespace {

StepResult answer(const StepPlan& plan) {
  StepResult result{.step = plan.step};
  for (const PlannedSequence& part : plan.sequences) {
    const int32_t token = static_cast<int32_t>(part.context);
    result.add(part.id, std::span(&token, part.sample ? 1 : 0));
  }
  return result;
}

// Of this thread, for the machine may be busy with something else.
int64_t cpu_us() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000 + time.tv_nsec / 1000;
}

int64_t median(std::vector<int64_t> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(int64_t sequences, int64_t prompt_tokens, bool window, int64_t waiting) {
  SchedulerConfig config;
  config.block_size = 16;
  const int64_t blocks = sequences * (prompt_tokens / 16 + 40);  // room for what is generated meanwhile
  config.groups = {{.kind = CacheKind::paged, .blocks = blocks}};
  if (window)
    config.groups.push_back({.kind = CacheKind::window, .window = 128, .blocks = sequences * 16 + 4096});
  config.max_num_seqs = sequences;
  config.max_num_batched_tokens = 8192;
  config.max_model_len = prompt_tokens + 4096;
  Scheduler scheduler(config);
  for (int64_t i = 0; i < sequences + waiting; ++i) {
    SequenceSpec spec{.prompt = std::vector<int32_t>(prompt_tokens)};
    for (int64_t p = 0; p < prompt_tokens; ++p) spec.prompt[p] = static_cast<int32_t>(i * 7 + p % 11);
    ASSERT_TRUE(scheduler.add(std::move(spec)).ok());
  }
  const int64_t start = cpu_us();
  int64_t prefill_steps = 0;
  for (int64_t decodes = 0; decodes < sequences; ++prefill_steps) {
    const StepPlan& plan = scheduler.plan();
    scheduler.commit(answer(plan));
    decodes = plan.rows() == sequences ? static_cast<int64_t>(plan.sequences.size()) : 0;
  }
  const int64_t prefill_us = cpu_us() - start;

  std::vector<int64_t> plan_us, commit_us;
  for (int step = 0; step < 100; ++step) {
    const int64_t begin = cpu_us();
    const StepPlan& plan = scheduler.plan();
    plan_us.push_back(cpu_us() - begin);
    const StepResult result = answer(plan);
    const int64_t answered = cpu_us();
    scheduler.commit(result);
    commit_us.push_back(cpu_us() - answered);
    ASSERT_EQ(plan.sequences.size(), static_cast<size_t>(sequences));
  }
  fmt::print(
      "  {} running of {} tokens{}, {} waiting: plan {} us, commit {} us; {} us per prefill step of 8192\n",
      sequences, prompt_tokens, window ? " with a window group" : "", waiting, median(plan_us),
      median(commit_us), prefill_us / prefill_steps);
  EXPECT_LT(median(plan_us), 20000);
}

TEST(SchedulerSpeed, AStepOfAThousandSequences) {
  measure(1000, 256, false, 0);
  measure(1000, 2048, false, 0);
  measure(1000, 2048, true, 200);
  measure(64, 32768, true, 0);
}

}  // namespace
}  // namespace atom
