// One device rank's share of a model: its declaration, weights, cache pools and step memory.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/config_keys.h"
#include "nn/causal_lm.h"
#include "runtime/device_step.h"
#include "runtime/loader.h"
#include "scheduler/step_plan.h"

namespace atom {

// The drafter that speculation needs.
struct DrafterOptions {
  bool wanted = false;
  // As DrafterTables::stores_own.
  std::function<bool(const std::string& own, const std::string& shared)> stores_own;
};

// How a model computes.
struct ComputeOptions {
  ops::Precision precision = ops::Precision::exact;
  CacheTypes cache;
  Device device;
};

// What a rank takes of its GPU beside its pools, in bytes.
struct DeviceMemory {
  int64_t weights = 0;
  int64_t step = 0;  // activations, scratch, lists
};

class ModelInstance {
 public:
  // Declares this rank's part; nothing is allocated. `config` is read here only. Throws Error for a bad
  // config, a mesh that cannot cut the model, or a type that its caches cannot have.
  ModelInstance(const ConfigReader& config, const Mesh& mesh, std::vector<int> stage_partition,
                ComputeOptions options, const DrafterOptions& drafter = {});

  ModelTables& tables() { return tables_; }
  const ModelTables& tables() const { return tables_; }
  // On a GPU the weights go there.
  void load(const Checkpoint& checkpoint, LoadOptions options);
  void load_dummy(DType dtype, const LoadOptions& options);
  // On a GPU, instead of loading: gives the weights (dummy ones of `dtype` without a checkpoint) places where
  // there is no memory, so that prepare_step() and device_memory() can tell what a run will take.
  void place(const Checkpoint* checkpoint, DType dtype);
  // On a GPU: plans the memory of a step, after loading or place(); allocate() takes it.
  void prepare_step(const StepLimits& limits);
  DeviceMemory device_memory() const;  // after prepare_step()

  std::vector<CacheSpec> cache_specs() const;  // by cache handle, then by state handle
  // Takes the memory of the pools. `plan` may cover more layers than this stage has: groups are matched by
  // window.
  void allocate(const CachePlan& plan, int64_t max_batched_tokens);

  // Runs one step, between receiving what the stage before sends and sending to the stage behind. The last
  // stage returns the logits (null if none are wanted), until the next call. `rope_lengths` has one entry per
  // row, or none if no rope depends on the context's length. On a GPU `choices` says how tokens are chosen
  // there, see DeviceStep.
  Tensor forward(ThreadPool& pool, const StepPlan& plan, std::span<const int32_t> rope_lengths,
                 std::span<const ops::TokenChoice> choices = {});
  // Lets `observer` hear of later steps; null ends it. After allocate(). Steps that are observed are not
  // replayed from a graph.
  void observe(Observer* observer);
  // Per logit row of the last forward() or draft() on a GPU: the token that was chosen.
  std::span<const int32_t> chosen_ids() const { return chosen_ids_; }
  // The logits of the last step on the host, for the rank that samples. On the CPU they are there already.
  Tensor to_host(const Tensor& logits);

  // On a GPU, steps whose tokens are chosen there: see DeviceStep.
  bool chooses() const { return device_step_ != nullptr; }
  int64_t choosable() const { return device_step_->choosable(); }
  void start(const StepPlan& plan, std::span<const int32_t> rope_lengths,
             std::span<const ops::TokenChoice> choices) {
    device_step_->start(plan, rope_lengths, choices);
  }
  std::span<const int32_t> finish() { return device_step_->finish(); }

  bool drafts() const { return model_->drafts(); }
  // Runs the drafter on rows whose next tokens are known: the plan's token_ids. `hidden_rows` says for every
  // row which row it goes on from: in step 0 one of the last forward(), later one of the logit rows of the
  // step before. Returns the logits of the plan's logit rows, until the next call; null if it has none. On a
  // GPU `choices` says how tokens are chosen there: then chosen_ids() has them. Without choices the rank that
  // samples has the logits on the host; all others are left on the device.
  Tensor draft(ThreadPool& pool, const StepPlan& plan, std::span<const int32_t> rope_lengths,
               std::span<const int32_t> hidden_rows, int step,
               std::span<const ops::TokenChoice> choices = {});

  bool has_states() const { return !states_.empty(); }
  // Rows of drafts do not change the recurrent state when they are computed. This adds the first `kept` rows
  // of each of the plan's first sequences, as far as they have drafts, after the step that forward() ran.
  void keep_rows(ThreadPool& pool, const StepPlan& plan, std::span<const int32_t> kept);
  int64_t weight_bytes() const { return weights_.bytes; }
  int64_t weight_bytes_per_step() const;  // what a step of one token reads, of routed experts on average
  int64_t cache_bytes() const;
  std::string cache_types_text() const;  // see cache_scales.h
  bool rope_depends_on_length() const;

 private:
  struct RopeTable {
    ops::RopeParameters parameters;
    std::vector<float> inv_freq;
  };
  bool on_gpu() const { return options_.device.kind != Device::cpu; }
  class StepViews;

  void upload(Weights host, const LoadOptions& options);
  DType widened_type() const;  // what GGUF blocks become on a GPU
  void copy_states(std::span<const StepPlan::StateCopy> copies);
  void take_rows_of_carries(std::span<const int32_t> rows);
  void leave_carries(const Batch& batch);
  Tensor carried(int carry, int64_t rows);
  std::vector<Tensor> carried_rows(int64_t rows);
  std::vector<ops::RopeAngles> compute_angles(Stream& stream, const Batch& batch);
  ops::RopeAngles compute_angles(Stream& stream, const RopeTable& rope, const Batch& batch);

  ComputeOptions options_;
  Observer* observer_ = nullptr;
  ModelTables tables_;
  std::unique_ptr<nn::Model> model_;
  Weights weights_;
  int64_t device_weight_bytes_ = 0;
  std::vector<RopeTable> ropes_;
  std::vector<ops::KvScales> kv_scales_;  // by cache handle, for a cache of E4M3
  std::vector<int64_t> group_windows_;    // window of each cache group; 0 for paged
  std::vector<KvPool> kv_;
  std::vector<SlotStates> states_;
  std::vector<Buffer> kv_buffers_;
  std::unique_ptr<StepArena> arena_;
  Buffer received_;                          // the stream of the stage before: [rows, hidden] f32
  std::vector<Buffer> carried_;              // what the layers carry, by handle: [rows, cols] i32
  Buffer hidden_;                            // what the drafter goes on from: [rows, hidden] f32
  std::unique_ptr<DeviceStep> device_step_;  // on a GPU
  std::span<const int32_t> chosen_ids_;
};

// The op that fills `out` for a step; `inv_freq` lies where the batch's lists do.
ops::ComputeRopeAngles angles_of_rope(const ops::RopeParameters& rope, const ops::RopeAngles& out,
                                      const Batch& batch, std::span<const float> inv_freq);

// What a stage gets from the stage before and gives to the stage behind: the stream [rows, hidden] and, of
// what the layers carry (by handle: [rows, cols]), what is needed there.
void receive_stage(Stream& stream, const ModelTables& tables, const Tensor& hidden,
                   std::span<const Tensor> carries);
void send_stage(Stream& stream, const ModelTables& tables, const Tensor& hidden,
                std::span<const Tensor> carries);

// Sequences at the beginning of the plan up to the last that has drafts.
int64_t drafted_sequences(const StepPlan& plan);

// The plan's sequences with recurrent state. Those with drafts keep none of their rows yet.
std::vector<ops::RecurrentSequence> recurrent_sequences(const StepPlan& plan);

// All rows up to those of the last sequence that has drafts.
std::vector<int32_t> open_rows(const StepPlan& plan);

// The rows of a plan whose logits are wanted, in order.
std::vector<int32_t> logit_rows(const StepPlan& plan);

}  // namespace atom
