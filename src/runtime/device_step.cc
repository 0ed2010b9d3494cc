#include "runtime/device_step.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "ops/argmax.h"
#include "ops/rope_frequencies.h"
#include "runtime/model_instance.h"

namespace atom {
namespace {

constexpr int64_t kIntBytes = sizeof(int32_t);

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Rows of the graph that runs a step of `sequences` decodes.
int64_t bucket_for(int64_t sequences) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(sequences)));
}

}  // namespace

DeviceStep::Layout::Layout(int64_t capacity, int64_t groups) {
  positions = aligned(capacity * kIntBytes);
  lengths = positions + aligned(capacity * kIntBytes);
  logit_rows = lengths + aligned(capacity * kIntBytes);
  sequences = logit_rows + aligned(capacity * kIntBytes);
  tables = sequences + aligned(groups * capacity * static_cast<int64_t>(sizeof(ops::AttentionSequence)));
}

DeviceStep::DeviceStep(Device device, const StepModel& model, const StepLimits& limits)
    : device_(device), model_(model), limits_(limits) {
  for (const ops::RopeParameters& rope : model.ropes) {
    frequencies_.emplace_back(rope.rotary_dim / 2 * static_cast<int64_t>(sizeof(float)), device);
  }
  plan_memory(limits);
  for (size_t i = 0; i < model.ropes.size(); ++i) {
    const std::vector<float> inv_freq = ops::rope_inv_freq(model.ropes[i]);
    queue_->copy_to_device(frequencies_[i].data(), inv_freq.data(), frequencies_[i].bytes());
    queue_->wait();
  }
}

DeviceStep::~DeviceStep() = default;

// Walks the largest steps on a queue and an arena that only count.
void DeviceStep::plan_memory(const StepLimits& limits) {
  gpu::Queue queue(device_, gpu::Queue::Mode::plan);
  StepArena arena = StepArena::planning(device_);
  Stream stream(queue);
  std::vector<KvPool> kv;
  for (const LayerCache& cache : model_.caches) {
    auto plane = [&](int64_t dim) {
      return make_tensor(reinterpret_cast<void*>(kAlignment), model_.cache_dtype,
                         {1, cache.heads, limits.block_size, dim}, device_);
    };
    kv.push_back({plane(cache.key_dim), plane(cache.value_dim)});
  }
  forward(stream, arena, {limits.max_rows, 1, limits.max_rows, limits.max_rows}, kv, 1);
  for (int64_t rows = 1; rows <= bucket_for(limits.max_sequences); rows *= 2) {
    forward(stream, arena, {rows, rows, rows, rows}, kv, 1);
  }
  arena_ = std::make_unique<StepArena>(arena.peak_half_bytes(), device_);
  queue_ = std::make_unique<gpu::Queue>(device_, gpu::Queue::Mode::run, queue.scratch_peak());
}

void DeviceStep::prepare(std::span<const KvPool> kv, int64_t groups) {
  kv_ = kv;
  groups_ = groups;
  const int64_t rows = std::max(limits_.max_rows, bucket_for(limits_.max_sequences));
  const int64_t blocks = (limits_.max_model_len + limits_.block_size - 1) / limits_.block_size + 1;
  const int64_t bytes = Layout(rows, groups).tables + groups * limits_.max_sequences * blocks * kIntBytes;
  host_stage_ = Buffer::pinned(bytes);
  device_stage_ = Buffer(bytes, device_);
  host_logits_ =
      Buffer::pinned(bucket_for(limits_.max_sequences) * model_.vocab * static_cast<int64_t>(sizeof(float)));
  host_best_ = Buffer::pinned(rows * kIntBytes);
  for (int64_t bucket = 1; bucket <= bucket_for(limits_.max_sequences); bucket *= 2) record(bucket);
}

// Rows of the graph that can run the plan; 0: none, it is not a step of decodes.
int64_t DeviceStep::bucket_of(const StepPlan& plan) const {
  for (const PlannedSequence& s : plan.sequences) {
    if (s.tokens != 1 || s.logit_rows != 1) return 0;
  }
  const int64_t bucket = bucket_for(plan.rows());
  return recorded_.contains(bucket) ? bucket : 0;
}

// Writes the plan's lists, with `padded_rows` rows that belong to nobody behind them, and sends them.
void DeviceStep::stage(const StepPlan& plan, std::span<const int32_t> rope_lengths, int64_t padded_rows,
                       int64_t capacity) {
  const Layout layout(capacity, groups_);
  auto* host = static_cast<std::byte*>(host_stage_.data());
  auto* device = static_cast<std::byte*>(device_stage_.data());
  auto ints = [&](int64_t offset) { return reinterpret_cast<int32_t*>(host + offset); };
  const int64_t rows = plan.rows(), total = rows + padded_rows;

  auto put = [&](int64_t offset, std::span<const int32_t> values, int32_t padding) {
    int32_t* end = std::copy(values.begin(), values.end(), ints(offset));
    std::fill_n(end, padded_rows, padding);
  };
  put(0, plan.token_ids, 0);
  put(layout.positions, plan.positions, 0);
  if (!rope_lengths.empty()) put(layout.lengths, rope_lengths, 1);
  int32_t* wanted = ints(layout.logit_rows);
  for (const PlannedSequence& s : plan.sequences) {
    for (int64_t i = s.tokens - s.logit_rows; i < s.tokens; ++i)
      *wanted++ = static_cast<int32_t>(s.first_row + i);
  }
  for (int64_t i = rows; i < total; ++i) *wanted++ = static_cast<int32_t>(i);

  int64_t end = layout.tables;
  for (int64_t g = 0; g < groups_; ++g) {
    auto* sequence = reinterpret_cast<ops::AttentionSequence*>(host + layout.sequences) + g * capacity;
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const PlannedSequence& s = plan.sequences[i];
      const BlockTableView table = plan.table(static_cast<int64_t>(i), g);
      const auto count = static_cast<int64_t>(table.ids.size());
      CHECK(end + count * kIntBytes <= host_stage_.bytes(), "block tables of {} bytes",
            end + count * kIntBytes);
      std::copy(table.ids.begin(), table.ids.end(), ints(end));
      // Entries before the first block are never read, so they need no room.
      const auto address =
          reinterpret_cast<uintptr_t>(device + end) - static_cast<uintptr_t>(table.first_block * kIntBytes);
      *sequence++ = {static_cast<int32_t>(s.first_row), static_cast<int32_t>(s.tokens),
                     static_cast<int32_t>(s.context), reinterpret_cast<const int32_t*>(address)};
      end += count * kIntBytes;
    }
    for (int64_t i = rows; i < total; ++i) *sequence++ = {static_cast<int32_t>(i), 1, 0, nullptr};
  }
  queue_->copy_to_device(device, host, end);
}

// Enqueues (or records, or with a planning queue only measures) the kernels of a step.
DeviceStep::Logits DeviceStep::forward(Stream& stream, StepArena& arena, const Shape& shape,
                                       std::span<const KvPool> kv, int64_t groups) const {
  const Layout layout(shape.capacity, groups);
  const auto* staged = static_cast<const std::byte*>(device_stage_.data());
  auto ints = [&](int64_t offset, int64_t count) {
    return std::span(reinterpret_cast<const int32_t*>(staged + offset), static_cast<size_t>(count));
  };
  std::vector<ops::AttentionBatch> attention;
  for (int64_t g = 0; g < groups; ++g) {
    const auto* sequences =
        reinterpret_cast<const ops::AttentionSequence*>(staged + layout.sequences) + g * shape.capacity;
    attention.push_back({std::span(sequences, static_cast<size_t>(shape.sequences)),
                         static_cast<int32_t>(limits_.block_size), static_cast<int32_t>(shape.rows)});
  }
  const Batch batch{.token_ids = ints(0, shape.rows),
                    .positions = ints(layout.positions, shape.rows),
                    .rope_lengths = ints(layout.lengths, shape.rows),
                    .logit_rows = ints(layout.logit_rows, shape.logit_rows),
                    .attention = attention};
  arena.begin_step();
  std::vector<ops::RopeAngles> angles;
  for (size_t i = 0; i < model_.ropes.size(); ++i) {
    const ops::RopeParameters& rope = model_.ropes[i];
    const int64_t half = rope.rotary_dim / 2;
    angles.push_back(
        {arena.alloc(DType::f32, {shape.rows, half}), arena.alloc(DType::f32, {shape.rows, half})});
    const std::span inv_freq(static_cast<const float*>(frequencies_[i].data()), static_cast<size_t>(half));
    ops::run(stream, angles_of_rope(rope, angles.back(), batch, inv_freq));
  }
  Ctx c{stream, arena, batch, kv, {}, angles, *model_.mesh, model_.precision};
  const Tensor logits = model_.model->forward(c, {});
  if (!logits) return {};
  const Tensor best = arena.alloc(DType::i32, {logits.dim(0)});
  ops::run(stream, ops::ArgMax{best, logits});
  return {logits, best};
}

void DeviceStep::record(int64_t bucket) {
  const StepPlan nothing;
  Stream stream(*queue_);
  const Shape shape{bucket, bucket, bucket, bucket};
  stage(nothing, {}, bucket, bucket);
  forward(stream, *arena_, shape, kv_, groups_);  // once for real: kernels are loaded at their first use
  queue_->wait();
  queue_->begin_recording();
  const Logits out = forward(stream, *arena_, shape, kv_, groups_);
  recorded_[bucket] = {queue_->end_recording(), out};
}

Tensor DeviceStep::run(const StepPlan& plan, std::span<const int32_t> rope_lengths) {
  queue_->activate();
  const int64_t bucket = bucket_of(plan), rows = plan.rows();
  int64_t logit_rows = 0;
  for (const PlannedSequence& s : plan.sequences) logit_rows += s.logit_rows;
  Logits out;
  if (bucket > 0) {
    stage(plan, rope_lengths, bucket - rows, bucket);
    const Recorded& recorded = recorded_.at(bucket);
    queue_->start(*recorded.graph);
    out = recorded.out;
  } else {
    stage(plan, rope_lengths, 0, rows);
    Stream stream(*queue_);
    out = forward(stream, *arena_, {rows, static_cast<int64_t>(plan.sequences.size()), logit_rows, rows}, kv_,
                  groups_);
  }
  if (out.best) queue_->copy_to_host(host_best_.data(), out.best.data, logit_rows * kIntBytes);
  queue_->wait();
  best_ids_ = std::span(static_cast<const int32_t*>(host_best_.data()), static_cast<size_t>(logit_rows));
  return out.values ? out.values.rows(0, logit_rows) : Tensor{};
}

Tensor DeviceStep::to_host(const Tensor& logits) {
  // Prompt logits may be many more than a step of decodes has.
  if (logits.bytes() > host_logits_.bytes()) host_logits_ = Buffer::pinned(logits.bytes());
  queue_->copy_to_host(host_logits_.data(), logits.data, logits.bytes());
  queue_->wait();
  return make_tensor(host_logits_.data(), DType::f32, {logits.dim(0), logits.dim(1)});
}

}  // namespace atom
