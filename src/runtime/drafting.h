// Drafting on the last stage after a step: the drafter computes the step's rows, for its own cache, and goes
// on from the last of each sequence.
#pragma once
#include <span>
#include <vector>

#include "runtime/model_instance.h"
#include "runtime/verify.h"

namespace atom {

// What is known of one planned sequence once its step has been sampled.
struct DraftInput {
  std::span<const int32_t> known;  // its tokens before the step
  int64_t prompt_tokens = 0;
  std::vector<int32_t> appended;  // by the step
  int64_t propose = 0;            // tokens to draft behind them
};

// Returns the drafts of each sequence, and appends them to `sequences`. To be called by every rank of `axis`,
// after forward() of the plan, with the same arguments; only rank 0 chooses, and needs `sequences`. A GPU
// chooses by itself if it can for all of them.
std::vector<std::vector<int32_t>> draft_tokens(ModelInstance& model, ThreadPool& pool, Communicator& axis,
                                               const StepPlan& plan, std::span<const DraftInput> inputs,
                                               std::span<SampledSequence> sequences);

// Rank 0's values on every rank.
void broadcast(Stream& stream, Communicator& axis, std::span<int32_t> values);

}  // namespace atom
