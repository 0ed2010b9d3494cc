// A step on a GPU: the plan's lists go to the device in one copy, the model's kernels are enqueued or, for a
// step of decodes, replayed from a recorded graph, and the logits come back.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "nn/causal_lm.h"
#include "scheduler/step_plan.h"
#include "tensor/gpu.h"

namespace atom {

// What a device rank needs of its model, all owned by the ModelInstance and outliving the step.
struct StepModel {
  const nn::Model* model = nullptr;
  const ModelTables* tables = nullptr;
  ops::Precision precision = ops::Precision::exact;
  DType cache_dtype = DType::f32;
};

// The memory of a rank that lasts from step to step, on the device.
struct StepPools {
  std::span<const KvPool> kv;          // by cache handle
  std::span<const SlotStates> states;  // by state handle
  std::span<const Buffer> carried;     // by carry handle: [rows, cols] i32
  Tensor hidden;                       // null, or what a drafter goes on from: [rows, hidden] f32
  int64_t groups = 1;                  // of blocks
};

struct StepLimits {
  int64_t max_rows = 0;       // of a step
  int64_t max_sequences = 0;  // of a step
  int64_t max_model_len = 0;
  int64_t block_size = 0;
};

class DeviceStep {
 public:
  // Plans the memory of a step, activations and scratch, by walking the largest steps without computing.
  // Nothing is allocated.
  DeviceStep(Device device, const StepModel& model, const StepLimits& limits);
  ~DeviceStep();

  // What prepare() takes of the device, beside graphs.
  int64_t memory_bytes() const;
  const StepLimits& limits() const { return limits_; }

  // Takes the memory, gives the pools, and records the graphs of decode steps. Before the first run. Throws
  // Error if the device has too little.
  void prepare(const StepPools& pools);

  // Runs one step. The logits, [logit rows, vocab] on the device (null if none are wanted), live until the
  // next call of this or draft().
  Tensor run(const StepPlan& plan, std::span<const int32_t> rope_lengths);
  // Of the last step, per logit row: the id of the largest logit, as ops::ArgMax says.
  std::span<const int32_t> best_ids() const { return best_ids_; }
  // The logits of the last step on the host, until the next call.
  Tensor to_host(const Tensor& logits);

  // As ModelInstance::draft and keep_rows.
  Tensor draft(const StepPlan& plan, std::span<const int32_t> rope_lengths,
               std::span<const int32_t> hidden_rows, int step);
  void keep_rows(const StepPlan& plan, std::span<const ops::RecurrentSequence> sequences);

 private:
  // Where a step's lists lie in the staging memory, which has room for `capacity` rows and sequences. One
  // capacity always gives the same places, as a graph needs.
  struct Layout {
    int64_t positions, lengths, logit_rows, chosen_rows, recurrent, sequences, tables;
    explicit Layout(int64_t capacity, int64_t groups);
  };
  struct Logits {
    Tensor values, best;  // [rows, vocab] f32, [rows] i32; null if none are wanted
  };
  struct Recorded {
    std::unique_ptr<gpu::Graph> graph;
    Logits out;
  };
  // Sizes of a step that kernels are launched for.
  struct Shape {
    int64_t rows, sequences, logit_rows;
    int64_t chosen_rows = 0;  // open rows, or the hidden rows of a draft
    int64_t recurrent = 0;    // sequences with state
    int64_t capacity = 0;
  };
  // What a plan does not say by itself.
  struct Extra {
    std::span<const int32_t> rope_lengths;
    std::span<const int32_t> chosen_rows;
    std::span<const ops::RecurrentSequence> recurrent;
  };
  // A step as the ops see it: the batch in staging memory and the context.
  class Views;

  void plan_memory();
  int64_t stage_bytes(int64_t groups) const;
  bool drafts() const { return model_.model->drafts(); }
  int64_t bucket_of(const StepPlan& plan) const;
  Shape shape_of(const StepPlan& plan, const Extra& extra) const;
  void stage(const StepPlan& plan, const Extra& extra, int64_t padded_rows, int64_t capacity);
  void copy_states(std::span<const StepPlan::StateCopy> copies);
  Logits forward(Stream& stream, StepArena& arena, const Shape& shape, const StepPools& pools) const;
  Tensor draft(Stream& stream, StepArena& arena, const Shape& shape, const StepPools& pools, int step,
               Tensor* output) const;
  void keep_rows(Stream& stream, StepArena& arena, const Shape& shape, const StepPools& pools) const;
  void take_rows_of_carries(std::span<const int32_t> rows);
  void leave_carries(const StepPlan& plan);
  void record(int64_t bucket);

  const Device device_;
  const StepModel model_;
  const StepLimits limits_;
  int64_t half_bytes_ = 0, scratch_bytes_ = 0;  // as planned
  std::unique_ptr<gpu::Queue> queue_;
  std::unique_ptr<StepArena> arena_;
  StepPools pools_;
  Buffer host_stage_, device_stage_, host_logits_, host_best_;
  Buffer first_positions_;  // 0, 1, ... for carries of drafts
  std::span<const int32_t> best_ids_;
  std::vector<Buffer> frequencies_;       // per rope
  std::map<int64_t, Recorded> recorded_;  // by rows
};

}  // namespace atom
