// Steps on a GPU: the plan's lists go to the device in one copy, the model's kernels are enqueued or, for a
// step of decodes, replayed from a recorded graph, the tokens are chosen there, and their ids come back.
//
// Two steps may be under way. The queue does them in order, so what they share on the device (lists,
// activations, the chosen ids, which the second may take its tokens from) needs no second copy; on the host
// each has its own lists and ids, and an event says that the ids have arrived.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nn/causal_lm.h"
#include "ops/draw.h"
#include "scheduler/step_plan.h"
#include "tensor/gpu.h"

namespace atom {

// What a device rank needs of its model, all owned by the ModelInstance and outliving the step.
struct StepModel {
  const nn::Model* model = nullptr;
  const ModelTables* tables = nullptr;
  ops::Precision precision = ops::Precision::exact;
  CacheTypes cache;
};

// The memory of a rank that lasts from step to step, on the device.
struct StepPools {
  std::span<const KvPool> kv;          // by cache handle
  std::span<const SlotStates> states;  // by state handle
  std::span<const Buffer> carried;     // by carry handle: [rows, cols] i32
  Tensor hidden;                       // null, or what a drafter goes on from: [rows, hidden] f32
  Tensor received;                     // null, or the stream of the stage before: [rows, hidden] f32
  int64_t groups = 1;                  // of blocks
};

struct StepLimits {
  int64_t max_rows = 0;       // of a step
  int64_t max_sequences = 0;  // of a step
  int64_t max_model_len = 0;
  int64_t block_size = 0;
  int64_t choosable = 0;  // ids from here on are padding and never chosen; 0: none
  int64_t drafts = 0;     // most that a sequence has in a step
};

class DeviceStep {
 public:
  // Plans the memory of a step, activations and scratch, by walking the largest steps without computing.
  // Nothing is allocated.
  DeviceStep(Device device, const StepModel& model, const StepLimits& limits);
  ~DeviceStep();

  // Rows of the largest step and of the largest graph: what pools need room for.
  int64_t most_rows() const;
  // What prepare() takes of the device, beside graphs.
  int64_t memory_bytes() const;

  // Takes the memory, gives the pools, and records the graphs of decode steps. Before the first run. Throws
  // Error if the device has too little.
  void prepare(const StepPools& pools);

  // See ModelInstance. With no step under way.
  void observe(Observer* observer) { observer_ = observer; }

  // Enqueues a step, between receiving from the stage before and sending to the stage behind. `choices` says
  // per logit row how its token is chosen; none: all by the largest logit. Tokens of a plan made ahead are
  // those of the step enqueued before.
  void start(const StepPlan& plan, std::span<const int32_t> rope_lengths,
             std::span<const ops::TokenChoice> choices);
  // Waits for the oldest step that is under way: the ids chosen for its logit rows, until the next but one is
  // enqueued; none on an earlier stage than the last.
  std::span<const int32_t> finish();
  // Of the step enqueued last: [logit rows, vocab] on the device (null if none are wanted, or on an earlier
  // stage than the last), until the next call.
  Tensor logits() const { return logits_; }
  // These on the host, until the next call. With no step under way, on the rank that samples.
  Tensor to_host(const Tensor& logits);
  // Ids below this one can be chosen.
  int64_t choosable() const;

  // As ModelInstance::draft and keep_rows; the logits are on the device. With no step under way.
  Tensor draft(const StepPlan& plan, std::span<const int32_t> rope_lengths,
               std::span<const int32_t> hidden_rows, int step, std::span<const ops::TokenChoice> choices);
  // The ids chosen for the logit rows of the last draft(), until the next call.
  std::span<const int32_t> drafted_ids() const { return drafted_ids_; }
  void keep_rows(const StepPlan& plan, std::span<const ops::RecurrentSequence> sequences);

 private:
  // Where a step's lists lie in the staging memory, which has room for `capacity` rows and sequences. One
  // capacity always gives the same places, as a graph needs.
  struct Layout {
    int64_t positions, lengths, logit_rows, chosen_rows, recurrent, sequences, tables;
    explicit Layout(int64_t capacity, int64_t groups);
  };
  // What is enqueued for a plan.
  enum class Part : uint8_t { step, first_draft, next_draft };
  // Recorded are steps of as many rows for each sequence, the last `drafts` of them drafts: with one row each
  // for any number of sequences, padded to a power of two, with more for few sequences.
  struct RecordedKey {
    Part part = Part::step;
    int64_t sequences = 0, rows_each = 1;
    auto operator<=>(const RecordedKey&) const = default;
  };
  struct Outcome {
    Tensor logits;  // of the logit rows; null if there are none
    Tensor
        hidden;  // of a draft: what the next one goes on from; of an earlier stage than the last: its stream
  };
  struct Recorded {
    std::unique_ptr<gpu::Graph> graph;
    Outcome out;
  };
  // What the host has of a step that is under way.
  struct Slot {
    Buffer lists, ids;  // pinned
    std::unique_ptr<gpu::Event> done;
    int64_t rows = 0;  // of ids
  };
  // Sizes of a step that kernels are launched for.
  struct Shape {
    int64_t rows, sequences, logit_rows;
    int64_t chosen_rows = 0;  // open rows, or the hidden rows of a draft
    int64_t recurrent = 0;    // sequences with state
    int64_t capacity = 0;
    const std::byte* lists = nullptr;  // the host's, unless the step is recorded
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
  std::optional<RecordedKey> key_of(const StepPlan& plan, Part part) const;
  Outcome enqueue(const StepPlan& plan, const Extra& extra, Part part,
                  std::span<const ops::TokenChoice> choices);
  Shape shape_of(const StepPlan& plan, const Extra& extra) const;
  int64_t stage(const StepPlan& plan, const Extra& extra, int64_t padded_rows, int64_t capacity,
                std::span<const ops::TokenChoice> choices = {});
  Slot& next_slot() { return slots_[static_cast<size_t>(started_ % 2)]; }
  Tensor chosen(int64_t rows) const;
  std::vector<Tensor> carries(const StepPools& pools, int64_t rows) const;
  void rehearse(bool on) const;
  bool samples() const;
  void copy_states(std::span<const StepPlan::StateCopy> copies);
  Outcome forward(Stream& stream, StepArena& arena, const Shape& shape, const StepPools& pools) const;
  Outcome draft(Stream& stream, StepArena& arena, const Shape& shape, const StepPools& pools, int step) const;
  Outcome run(Stream& stream, const Shape& shape, Part part) const;
  void keep_rows(Stream& stream, StepArena& arena, const Shape& shape, const StepPools& pools) const;
  void take_rows_of_carries(std::span<const int32_t> rows);
  void leave_carries(const StepPlan& plan);
  template <class Visit>
  void for_each_drafted(Visit visit) const;
  void record(const RecordedKey& key);

  const Device device_;
  const StepModel model_;
  const StepLimits limits_;
  int64_t half_bytes_ = 0, scratch_bytes_ = 0;  // as planned
  std::unique_ptr<gpu::Queue> queue_;
  std::unique_ptr<StepArena> arena_;
  StepPools pools_;
  Buffer device_stage_, host_logits_;
  Buffer chosen_;  // the ids chosen for logit rows: [rows] i32
  std::array<Slot, 2> slots_;
  int64_t started_ = 0, finished_ = 0;
  Tensor logits_;
  std::span<const int32_t> drafted_ids_;
  Buffer first_positions_;           // 0, 1, ... for carries of drafts
  std::vector<Buffer> frequencies_;  // per rope
  std::map<RecordedKey, Recorded> recorded_;
  Observer* observer_ = nullptr;
};

}  // namespace atom
