// Workers: the device ranks of one model in this process, tensor-parallel ranks times pipeline stages, one
// thread each. A single rank runs on the caller's thread.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/model_instance.h"
#include "runtime/step_runner.h"
#include "runtime/verify.h"

namespace atom {

struct ParallelOptions {
  int tp = 1;                        // ranks that share every layer
  int pp = 1;                        // pipeline stages
  int ep = 1;                        // groups of tp ranks that experts are dealt to whole; divides tp
  int threads = 1;                   // of the machine, dealt to the ranks
  std::vector<int> stage_partition;  // layers per stage; empty: as even as possible
  std::vector<Device> devices;       // of each rank, [stage, tp]; empty: all on the CPU
  DrafterOptions drafter;
};

class Workers final : public StepRunner {
 public:
  // The device of `compute` is not looked at.
  Workers(const ConfigReader& config, const ParallelOptions& parallel, ComputeOptions compute);
  ~Workers() override;
  Workers(const Workers&) = delete;

  void load(const Checkpoint& checkpoint, const LoadOptions& options);
  void load_dummy(DType dtype, const LoadOptions& options);
  // See ModelInstance.
  void place(const Checkpoint* checkpoint, DType dtype);
  void prepare_step(const StepLimits& limits);
  // Cache specs of the rank that needs most per layer group: all stages' layers, as one rank would have them.
  std::vector<CacheSpec> cache_specs() const;
  // Where the ranks are, each device once, and what all ranks that are on one take and cache there.
  std::vector<Device> devices() const;
  DeviceMemory device_memory(Device device) const;  // see ModelInstance
  std::vector<CacheSpec> cache_specs_on(Device device) const;
  void allocate(const CachePlan& plan, int64_t max_batched_tokens);
  // See ModelInstance. Calls come from the ranks' threads, one at a time. With no step under way.
  void observe(Observer* observer);

  std::vector<SequenceOutput> run(const StepPlan& plan, std::span<const SequenceInput> inputs) override;
  // One rank on a GPU begins steps without drafts whose tokens are chosen there: see device_choice().
  bool start(const StepPlan& plan, std::span<const SequenceInput> inputs) override;
  std::vector<SequenceOutput> finish() override;

  int ranks() const;
  int64_t weight_bytes() const;  // over all ranks
  // Of these, what a step of one token reads: all but an untied embedding and the experts not chosen.
  int64_t weight_bytes_per_step() const;
  int64_t cache_bytes() const;
  std::string cache_types_text() const;  // see cache_scales.h
  int64_t vocab() const override;
  bool rope_depends_on_length() const override;
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

  std::vector<int32_t> rope_lengths(const StepPlan& plan, std::span<const SequenceInput> inputs) const;

  std::deque<std::vector<bool>> started_;  // steps under way: per sequence, whether it is given a token
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // [stage, tp]
};

}  // namespace atom
