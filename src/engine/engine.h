// Engine: turns requests into token streams. It owns the scheduler and all policy state and has one owner
// thread: no locks. EngineThread (engine_thread.h) gives it a thread and an inbox.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>

#include "engine/draft_policy.h"
#include "engine/request.h"
#include "runtime/step_runner.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace atom {

struct EngineOptions {
  CachePlan cache;  // whose pools the workers have allocated
  int64_t max_num_batched_tokens = 512;
  bool prefix_caching = true;
  std::string cache_salt;        // model identity and cache type
  std::vector<int32_t> eos_ids;  // end every sample unless ignore_eos
  int64_t drafts = 0;            // most tokens drafted ahead of a sample; needs workers with a drafter
  bool adaptive_drafts = false;  // fewer where they do not pay
};

struct EngineStats {
  SchedulerStats scheduler;
  int64_t output_tokens = 0;
  SpeculationStats speculation;
  int64_t host_us = 0;  // in step() without waiting for results of steps
};

class Engine {
 public:
  // `runner` and `tokenizer` must outlive the engine; without a tokenizer there is no text and no stop
  // string.
  Engine(StepRunner& runner, const text::Tokenizer* tokenizer, EngineOptions options);
  ~Engine();

  // Queues a request, or says why it can never be served. `sink` hears of it from step() on.
  Result<RequestId> submit(Request request, OutputSink sink);
  // Ends a request; its samples finish with `cancelled` in the next step. Unknown ids are ignored.
  void cancel(RequestId id);
  // Brings one step to its end and reports. The one after it is begun before, if it can be planned without
  // knowing how this one ends, so that a device need not wait for the host; what is reported is the same.
  // False if there was nothing to do.
  bool step();
  bool idle() const { return scheduler_.idle() && flights_.empty(); }
  EngineStats stats() const;
  // Is called after each step with its plan and what came of it: for logs and tests.
  void observe_steps(std::function<void(const StepPlan&, const StepResult&)> observer) {
    step_observer_ = std::move(observer);
  }
  int64_t max_model_len() const { return scheduler_.max_total_tokens(); }

 private:
  struct Sample;
  struct ActiveRequest;

  std::optional<Error> validate(const Request& request) const;
  // A step between its plan and its result.
  struct Flight {
    const StepPlan* plan = nullptr;
    bool started = false;  // false: it runs when its result is needed
  };
  void take_off(const StepPlan& plan);
  void land();
  std::vector<SequenceInput> inputs_of(const StepPlan& plan);
  SequenceInput input_of(const PlannedSequence& planned);
  void plan_drafts(const StepPlan& plan, const StepResult& result, double seconds);
  void take_tokens(const PlannedSequence& planned, Sample& sample, SequenceOutput& output,
                   StepResult& result);
  enum class Taken : uint8_t { goes_on, stopped, failed };
  Taken take_token(Sample& sample, SampledToken& token, int64_t output_tokens);
  void report_finished();

  StepRunner& runner_;
  const text::Tokenizer* tokenizer_;
  const EngineOptions options_;
  Scheduler scheduler_;
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
  std::unordered_map<SequenceId, Sample*> samples_;
  std::deque<Flight> flights_;  // two at most
  RequestId next_id_ = 0;
  int64_t output_tokens_ = 0;
  int64_t host_us_ = 0, waited_us_ = 0;
  SpeculationStats speculation_;
  DraftPolicy draft_policy_;
  std::function<void(const StepPlan&, const StepResult&)> step_observer_;
};

// Serves a request with nothing else under way, to its end. `take` hears all of it. What failed, or nothing;
// throws Error if the request can never be served.
std::string serve_alone(Engine& engine, Request request, const std::function<void(OutputDelta&)>& take);

}  // namespace atom
