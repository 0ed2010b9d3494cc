// One device rank's share of a model: its declaration, weights, cache pools and step memory.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/config_keys.h"
#include "nn/causal_lm.h"
#include "runtime/device_step.h"
#include "runtime/loader.h"
#include "scheduler/step_plan.h"

namespace atom {

// How a model computes.
struct ComputeOptions {
  ops::Precision precision = ops::Precision::exact;
  DType cache_dtype = DType::f32;
  Device device;
};

class ModelInstance {
 public:
  // Declares this rank's part; nothing is allocated. `config` is read here only. Throws Error for a bad
  // config or a mesh that cannot cut the model.
  ModelInstance(const ConfigReader& config, const Mesh& mesh, std::vector<int> stage_partition,
                ComputeOptions options);

  ModelTables& tables() { return tables_; }
  const ModelTables& tables() const { return tables_; }
  // On a GPU the weights go there.
  void load(const Checkpoint& checkpoint, LoadOptions options);
  void load_dummy(DType dtype, const LoadOptions& options);
  // On a GPU: takes the memory of a step, after loading and before the pools are planned.
  void prepare_step(const StepLimits& limits);

  std::vector<CacheSpec> cache_specs() const;  // by cache handle, then by state handle
  // Takes the memory of the pools. `plan` may cover more layers than this stage has: groups are matched by
  // window.
  void allocate(const CachePlan& plan, int64_t max_batched_tokens);

  // Runs one step. `hidden` is the stage before's stream (first stage: ignored). `rope_lengths` has one entry
  // per row, or none if no rope depends on the context's length. The result lives until the next call.
  Tensor forward(ThreadPool& pool, const StepPlan& plan, std::span<const int32_t> rope_lengths, Tensor hidden,
                 Observer* observer = nullptr);
  // Of the last step's logits: the largest of each row (see ops::ArgMax), and all of them on the host. On the
  // CPU nothing is known of the largest, and the logits are there already.
  std::span<const int32_t> best_ids() const;
  Tensor to_host(const Tensor& logits);
  // Memory for the stream that the stage before sends: [rows, hidden].
  Tensor receive_buffer(int64_t rows);
  // What the layers carry, by handle: [rows, cols] i32. The stage before's is put there before forward();
  // what is there afterwards is for the stage behind.
  Tensor carried(int carry, int64_t rows);

  int64_t weight_bytes() const { return weights_.bytes; }
  int64_t weight_bytes_per_step() const;  // what a step of one token reads, of routed experts on average
  int64_t cache_bytes() const;
  bool rope_depends_on_length() const;

 private:
  struct RopeTable {
    ops::RopeParameters parameters;
    std::vector<float> inv_freq;
  };
  bool on_gpu() const { return options_.device.kind != Device::cpu; }
  void copy_states(std::span<const StepPlan::StateCopy> copies);
  ops::RopeAngles compute_angles(Stream& stream, const RopeTable& rope, const Batch& batch);

  ComputeOptions options_;
  ModelTables tables_;
  std::unique_ptr<nn::Model> model_;
  Weights weights_;
  std::vector<RopeTable> ropes_;
  std::vector<int64_t> group_windows_;  // window of each cache group; 0 for paged
  std::vector<KvPool> kv_;
  std::vector<SlotStates> states_;
  std::vector<Buffer> kv_buffers_;
  std::unique_ptr<StepArena> arena_;
  Buffer received_;
  std::vector<Buffer> carried_;
  std::unique_ptr<DeviceStep> device_step_;  // on a GPU
};

// The op that fills `out` for a step; `inv_freq` lies where the batch's lists do.
ops::ComputeRopeAngles angles_of_rope(const ops::RopeParameters& rope, const ops::RopeAngles& out,
                                      const Batch& batch, std::span<const float> inv_freq);

// The rows of a plan whose logits are wanted, in order.
std::vector<int32_t> logit_rows(const StepPlan& plan);

}  // namespace atom
