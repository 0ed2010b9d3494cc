// StepRunner: what an Engine gives its steps to, and what it says and hears of each sequence.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "runtime/sampler.h"
#include "scheduler/step_plan.h"

namespace atom {

// What a step must know about one sequence besides its tokens; parallel to StepPlan::sequences.
struct SequenceInput {
  SampleRequest sample;             // for sequences that are sampled
  std::span<const int32_t> tokens;  // prompt and output so far
  int64_t prompt_tokens = 0;
  int32_t prompt_logprobs = -1;  // as SamplingParams::logprobs, for prompt rows
  // Called with every prompt row's logits, before anything changes them; row is its position.
  const std::function<void(int64_t row, std::span<const float> logits)>* logits_sink = nullptr;
};

struct SequenceOutput {
  std::vector<SampledToken> tokens;  // appended, if the sequence is sampled: at least one, see verify()
  std::vector<int32_t> drafts;       // to follow them
  // One entry per prompt row of the step whose next token is known: that token first, then the best.
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  virtual int64_t vocab() const = 0;
  virtual bool rope_depends_on_length() const = 0;

  // Runs a step, samples, and drafts what the plan proposes. The result is parallel to the plan's sequences.
  // No step is under way meanwhile.
  virtual std::vector<SequenceOutput> run(const StepPlan& plan, std::span<const SequenceInput> inputs) = 0;

  // Begins a step and returns, if the step needs nothing of the host until its tokens are known; else false,
  // and the step is run(). Two may be under way: behind a step that was begun, one that was planned ahead of
  // its tokens is never refused. Nothing of the arguments is used after this returns.
  virtual bool start(const StepPlan& plan, std::span<const SequenceInput> inputs) = 0;
  // Waits for the oldest step under way.
  virtual std::vector<SequenceOutput> finish() = 0;
};

}  // namespace atom
