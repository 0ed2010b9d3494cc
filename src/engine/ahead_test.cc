// Two steps in flight: an engine whose runner takes steps before the tokens that they begin with are known
// gives every request what one step at a time gives it.
#include <gtest/gtest.h>

#include <deque>

#include "engine/device_option.h"
#include "engine/test_answers.h"

namespace atom {
namespace {

// Takes what a device could choose the tokens of, and computes it at once: the engine is told when it asks.
class AheadRunner final : public StepRunner {
 public:
  explicit AheadRunner(Workers& workers) : workers_(workers) {}
  int64_t vocab() const override { return workers_.vocab(); }
  bool rope_depends_on_length() const override { return workers_.rope_depends_on_length(); }
  std::vector<SequenceOutput> run(const StepPlan& plan, std::span<const SequenceInput> inputs) override {
    EXPECT_TRUE(results_.empty()) << "a step is under way";
    for (const int32_t id : plan.token_ids) EXPECT_GE(id, 0);
    return workers_.run(plan, inputs);
  }
  bool start(const StepPlan& plan, std::span<const SequenceInput> inputs) override {
    if (plan.drafting) return false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const PlannedSequence& s = plan.sequences[i];
      if (s.logit_rows != (s.sample ? 1 : 0) || inputs[i].prompt_logprobs >= 0) return false;
      if (s.sample && !device_choice(inputs[i].sample, vocab())) return false;
    }
    EXPECT_LT(results_.size(), 2u);
    StepPlan known = plan;
    for (int32_t& id : known.token_ids) {
      if (id >= 0) continue;
      EXPECT_EQ(results_.size(), 1u) << "a step planned ahead without one before it";
      ++rows_ahead;
      id = chosen_.at(static_cast<size_t>(choosing_row(id)));
    }
    results_.push_back(workers_.run(known, inputs));
    chosen_.clear();
    for (const SequenceOutput& output : results_.back()) {
      if (!output.tokens.empty()) chosen_.push_back(std::max(0, output.tokens.front().id));
    }
    return true;
  }
  std::vector<SequenceOutput> finish() override {
    std::vector<SequenceOutput> result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

  int64_t rows_ahead = 0;

 private:
  Workers& workers_;
  std::deque<std::vector<SequenceOutput>> results_;
  std::vector<int32_t> chosen_;
};

EngineOptions engine_options(LoadedModel& model) {
  EngineOptions o;
  o.cache = model.cache_plan();
  o.max_num_batched_tokens = o.cache.limits.max_num_batched_tokens;
  o.cache_salt = "test";
  o.eos_ids = model.text().eos_ids();
  return o;
}

// Requests that a device chooses tokens for, all of different lengths.
std::vector<Request> plain_requests() {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 10; ++i) {
    Request r = request_of(prompt_of(5 + 6 * i % 23, i), 4 + 7 * i % 26);
    if (i % 3 == 1) {
      r.sampling.temperature = 0.8f + 0.1f * static_cast<float>(i);
      r.sampling.seed = static_cast<uint64_t>(i);
      r.sampling.top_k = i % 2 == 0 ? 20 : 0;
      r.sampling.top_p = 0.9f;
    }
    requests.push_back(std::move(r));
  }
  requests[4].n = 3;
  return requests;
}

std::vector<Answer> one_at_a_time(const ModelOptions& options, const std::vector<Request>& requests) {
  return answers(options, requests);
}

std::vector<Answer> two_at_a_time(const ModelOptions& options, const std::vector<Request>& requests,
                                  int64_t least_rows_ahead) {
  LoadedModel model(options);
  AheadRunner runner(model.workers());
  Engine engine(runner, model.text().tokenizer_if(), engine_options(model));
  std::vector<Answer> all = answers(engine, requests);
  EXPECT_TRUE(engine.idle());
  for (const auto& group : engine.stats().scheduler.groups) EXPECT_EQ(group.used, 0);
  EXPECT_GE(runner.rows_ahead, least_rows_ahead);
  return all;
}

TEST(StepsAhead, GiveTheSameAnswers) {
  for (const char* name : {"llama_plain", "qwen3_window", "qwen3_next_r2", "gpt_oss_plain"}) {
    const ModelOptions o = golden_model(name, 96, /*threads=*/1);
    expect_same(two_at_a_time(o, plain_requests(), 40), one_at_a_time(o, plain_requests()), name);
  }
}

TEST(StepsAhead, GiveTheSameAnswersToRequestsThatStopWhereNobodyKnew) {
  const ModelOptions o = golden_model("llama_plain", 96, /*threads=*/1);
  std::vector<Request> requests = plain_requests();
  const std::vector<Answer> free = one_at_a_time(o, requests);
  size_t sample = 0;
  for (Request& r : requests) {  // each ends at the first place of what stood in its middle
    r.sampling.stop_ids = {free[sample].ids[free[sample].ids.size() / 2]};
    sample += static_cast<size_t>(r.n);
  }
  expect_same(two_at_a_time(o, requests, 20), one_at_a_time(o, requests), "stops");
}

TEST(StepsAhead, GiveTheSameAnswersBesideRequestsThatNeedTheHost) {
  const ModelOptions o = golden_model("llama_plain", 96, /*threads=*/1);
  std::vector<Request> requests = plain_requests();
  requests[1].sampling.logprobs = 2;
  requests[2].sampling.repetition_penalty = 1.3f;
  requests[3].sampling.logit_bias = {{5, 3.0f}};
  requests[5].prompt_logprobs = 1;
  requests[6].sampling.min_tokens = 3;
  requests[8].sampling.min_tokens = 100;
  expect_same(two_at_a_time(o, requests, 1), one_at_a_time(o, requests), "mixed");
}

TEST(StepsAhead, GiveTheSameAnswersWhenBlocksAreScarce) {
  ModelOptions o = golden_model("llama_plain", 40, /*threads=*/1);
  LoadedModel sizes(o);
  o.kv_cache_bytes = 12 * (sizes.cache_plan().used_bytes / sizes.cache_plan().groups.front().blocks);
  std::vector<Request> requests = plain_requests();
  for (Request& r : requests) r.max_tokens = 12;
  expect_same(two_at_a_time(o, requests, 10), one_at_a_time(o, requests), "scarce");
}

TEST(StepsAhead, PublishOnlyBlocksWhoseTokensAreKnown) {
  const ModelOptions o = golden_model("llama_plain", 120, /*threads=*/1);
  LoadedModel model(o);
  AheadRunner runner(model.workers());
  Engine engine(runner, nullptr, engine_options(model));
  const Answer first = answers(engine, {request_of(prompt_of(30, 1), 18)})[0];
  std::vector<int32_t> follow = prompt_of(30, 1);
  follow.insert(follow.end(), first.ids.begin(), first.ids.end());
  const Answer second = answers(engine, {request_of(follow, 10)})[0];
  const std::vector<Answer> want = one_at_a_time(o, {request_of(prompt_of(30, 1), 18)});
  EXPECT_EQ(first.ids, want[0].ids);
  EXPECT_EQ(second.ids, one_at_a_time(o, {request_of(follow, 10)})[0].ids);
  EXPECT_EQ(second.usage.cached_tokens, 44);  // 47 tokens have keys: 11 blocks of 4
}

TEST(StepsAhead, ACancelledRequestHearsNothingMore) {
  LoadedModel model(golden_model("llama_plain", 120, /*threads=*/1));
  AheadRunner runner(model.workers());
  Engine engine(runner, nullptr, engine_options(model));
  std::vector<int32_t> ids;
  std::optional<FinishReason> finish;
  RequestId cancelled = -1;
  cancelled = engine
                  .submit(request_of(prompt_of(12, 1), 60),
                          [&](OutputDelta&& d) {
                            ids.insert(ids.end(), d.token_ids.begin(), d.token_ids.end());
                            if (ids.size() == 5) engine.cancel(cancelled);
                            if (d.finish) finish = d.finish;
                          })
                  .take();
  const std::vector<Answer> others = answers(engine, {request_of(prompt_of(9, 2), 20)});
  EXPECT_EQ(ids.size(), 5u);
  EXPECT_EQ(finish, FinishReason::cancelled);
  EXPECT_EQ(others[0].ids.size(), 20u);
  EXPECT_EQ(engine.stats().scheduler.groups.front().used, 0);
  EXPECT_TRUE(engine.idle());
}

TEST(StepsAhead, AnEngineThatEndsWithStepsUnderWayTakesThemBack) {
  LoadedModel model(golden_model("llama_plain", 120, /*threads=*/1));
  AheadRunner runner(model.workers());
  {
    Engine engine(runner, nullptr, engine_options(model));
    engine.submit(request_of(prompt_of(12, 1), 60), [](OutputDelta&&) {}).take();
    engine.step();
    engine.step();
  }
  Engine engine(runner, nullptr, engine_options(model));
  EXPECT_EQ(answers(engine, {request_of(prompt_of(9, 2), 20)})[0].ids.size(), 20u);
}

TEST(StepsAhead, OfAGpuGiveTheAnswersOfTheCpu) {
  if (gpu::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const char* name : {"llama_plain", "qwen3_window", "qwen3_next_r2", "gpt_oss_plain"}) {
    ModelOptions o = golden_model(name, 96);
    o.device = "cpu";
    const std::vector<Answer> want = one_at_a_time(o, plain_requests());
    o.device = to_string(Device{gpu::backend(), 0});
    expect_same(one_at_a_time(o, plain_requests()), want, name);
    std::vector<Request> stopping = plain_requests();
    size_t sample = 0;
    for (Request& r : stopping) {
      r.sampling.stop_ids = {want[sample].ids[want[sample].ids.size() / 2]};
      sample += static_cast<size_t>(r.n);
    }
    ModelOptions host = o;
    host.device = "cpu";
    expect_same(one_at_a_time(o, stopping), one_at_a_time(host, stopping), name);
  }
}

}  // namespace
}  // namespace atom
