// Workers: the device ranks of one model in this process, tensor-parallel ranks times pipeline stages, one
// thread each. A single rank runs on the caller's thread.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/model_instance.h"
#include "runtime/verify.h"

namespace atom {

struct ParallelOptions {
  int tp = 1;                        // ranks that share every layer
  int pp = 1;                        // pipeline stages
  int ep = 1;                        // groups of tp ranks that experts are dealt to whole; divides tp
  int threads = 1;                   // of the machine, dealt to the ranks
  std::vector<int> stage_partition;  // layers per stage; empty: as even as possible
  DrafterOptions drafter;
};

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

class Workers {
 public:
  Workers(const ConfigReader& config, const ParallelOptions& parallel, const ComputeOptions& compute);
  ~Workers();
  Workers(const Workers&) = delete;

  void load(const Checkpoint& checkpoint, const LoadOptions& options);
  void load_dummy(DType dtype, const LoadOptions& options);
  // See ModelInstance.
  void place(const Checkpoint* checkpoint, DType dtype);
  void prepare_step(const StepLimits& limits);
  DeviceMemory device_memory() const;  // of the rank that needs most
  // Cache specs of the rank that needs most per layer group: all stages' layers, as one rank would have them.
  std::vector<CacheSpec> cache_specs() const;
  void allocate(const CachePlan& plan, int64_t max_batched_tokens);

  // Runs a step on all ranks, samples, and drafts what the plan proposes. The result is parallel to the
  // plan's sequences.
  std::vector<SequenceOutput> run(const StepPlan& plan, std::span<const SequenceInput> inputs);

  int ranks() const;
  int64_t weight_bytes() const;  // over all ranks
  // Of these, what a step of one token reads: all but an untied embedding and the experts not chosen.
  int64_t weight_bytes_per_step() const;
  int64_t cache_bytes() const;
  int64_t vocab() const;
  bool rope_depends_on_length() const;
  bool drafts() const;

 private:
  struct Rank;
  void on_all_ranks(const std::function<void(Rank&)>& fn);
  void run_rank(Rank& rank, const StepPlan& plan, std::span<const SequenceInput> inputs,
                std::span<const int32_t> rope_lengths, std::vector<SequenceOutput>& outputs);
  void sample(Rank& rank, const StepPlan& plan, std::span<const SequenceInput> inputs, Tensor logits,
              std::vector<SampledSequence>& sequences, std::vector<SequenceOutput>& outputs);
  void draft(Rank& rank, const StepPlan& plan, std::span<const SequenceInput> inputs,
             std::vector<SampledSequence>& sequences, std::vector<SequenceOutput>& outputs);

  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // [stage, tp]
};

}  // namespace atom
