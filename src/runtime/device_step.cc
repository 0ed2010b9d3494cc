#include "runtime/device_step.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text_util.h"
#include "ops/argmax.h"
#include "ops/rope_frequencies.h"
#include "runtime/model_instance.h"

namespace atom {
namespace {

constexpr int64_t kIntBytes = sizeof(int32_t);
// Up to so many sequences, steps with drafts are recorded.
constexpr int64_t kMostTile = 128;  // rows of x
constexpr int64_t kFewSequences = 8;

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
  chosen_rows = logit_rows + aligned(capacity * kIntBytes);
  recurrent = chosen_rows + aligned(capacity * kIntBytes);
  sequences = recurrent + aligned(capacity * static_cast<int64_t>(sizeof(ops::RecurrentSequence)));
  tables = sequences + aligned(groups * capacity * static_cast<int64_t>(sizeof(ops::AttentionSequence)));
}

DeviceStep::DeviceStep(Device device, const StepModel& model, const StepLimits& limits)
    : device_(device), model_(model), limits_(limits) {
  frequencies_.resize(model.tables->ropes.size());
  plan_memory();
}

DeviceStep::~DeviceStep() = default;

int64_t DeviceStep::most_rows() const {
  return std::max(limits_.max_rows, bucket_for(limits_.max_sequences));
}

int64_t DeviceStep::choosable() const {
  const int64_t vocab = model_.tables->vocab;
  return limits_.choosable > 0 ? std::min(limits_.choosable, vocab) : vocab;
}

Tensor DeviceStep::chosen(int64_t rows) const {
  // While memory is planned there is none.
  void* data = chosen_.bytes() > 0 ? chosen_.data() : reinterpret_cast<void*>(kAlignment);
  return make_tensor(data, DType::i32, {rows}, device_);
}

// Walks the largest steps on a queue and an arena that only count, and one of a tile: products that leave
// sums in parts ask for more for it than for many rows.
void DeviceStep::plan_memory() {
  gpu::Queue queue(device_, gpu::Queue::Mode::plan);
  StepArena arena = StepArena::planning(device_);
  Stream stream(queue);
  const ModelTables& tables = *model_.tables;
  // Tensors that nobody reads, behind all that the arena hands out; no two are the same.
  int64_t address = int64_t{1} << 52;
  auto nowhere = [&](DType dtype, std::initializer_list<int64_t> shape) {
    const Tensor t = make_tensor(reinterpret_cast<void*>(address), dtype, shape, device_);
    address += aligned(t.bytes());
    return t;
  };
  std::vector<KvPool> kv;
  for (const LayerCache& cache : tables.caches) {
    auto plane = [&](int64_t dim) {
      return nowhere(cache.dtype(model_.cache), {1, cache.heads, limits_.block_size, dim});
    };
    KvPool& pool = kv.emplace_back(KvPool{plane(cache.key_dim), plane(cache.value_dim)});
    if (cache.has_key_scales(model_.cache)) pool.key_scales = nowhere(DType::f32, {1, limits_.block_size});
  }
  std::vector<SlotStates> states;
  for (const LayerState& state : tables.states) {
    states.push_back({nowhere(DType::f32, {1, state.conv}), nowhere(DType::f32, {1, state.recurrent}),
                      nowhere(DType::f32, {most_rows(), state.row})});
  }
  const std::vector<Buffer> carried(tables.carries.size());
  auto rows = [&](bool wanted) {
    return wanted ? nowhere(DType::f32, {most_rows(), tables.hidden}) : Tensor{};
  };
  const StepPools pools{kv, states, carried, rows(drafts()), rows(!tables.mesh.first_stage())};
  const bool recurrent = !states.empty();
  auto walk = [&](int64_t rows, int64_t sequences) {
    const Shape shape{rows, sequences, rows, drafts() && recurrent ? rows : 0, recurrent ? sequences : 0,
                      rows};
    forward(stream, arena, shape, pools);
    if (!drafts()) return;
    draft(stream, arena, {rows, sequences, sequences, rows, 0, rows}, pools, 0);
    if (recurrent) keep_rows(stream, arena, shape, pools);
  };
  walk(limits_.max_rows, 1);
  walk(std::min(kMostTile, limits_.max_rows), 1);
  const int64_t most = bucket_for(limits_.max_sequences);
  for (int64_t rows = 1; rows <= most; rows *= 2) walk(rows, rows);
  for_each_drafted([&](int64_t sequences, int64_t rows_each) { walk(sequences * rows_each, sequences); });
  half_bytes_ = arena.peak_half_bytes();
  scratch_bytes_ = queue.scratch_peak();
}

// Of the lists of a step.
int64_t DeviceStep::stage_bytes(int64_t groups) const {
  const int64_t rows = most_rows();
  const int64_t blocks = (limits_.max_model_len + limits_.block_size - 1) / limits_.block_size + 1;
  return aligned(Layout(rows, groups).tables + groups * limits_.max_sequences * blocks * kIntBytes) +
         rows * static_cast<int64_t>(sizeof(ops::TokenChoice));
}

int64_t DeviceStep::memory_bytes() const {
  std::set<int64_t> windows;
  for (const LayerCache& cache : model_.tables->caches)
    windows.insert(cache.window >= limits_.max_model_len ? 0 : cache.window);
  return 2 * half_bytes_ + scratch_bytes_ + gpu::Queue::kCounters * kIntBytes +
         stage_bytes(static_cast<int64_t>(windows.size())) + most_rows() * kIntBytes;
}

void DeviceStep::prepare(const StepPools& pools) {
  pools_ = pools;
  const Mesh& mesh = model_.tables->mesh;
  arena_ = std::make_unique<StepArena>(half_bytes_, device_);
  queue_ = std::make_unique<gpu::Queue>(device_, gpu::Queue::Mode::run, scratch_bytes_);
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const std::vector<float> inv_freq = ops::rope_inv_freq(model_.tables->ropes[i]);
    frequencies_[i] = Buffer(static_cast<int64_t>(inv_freq.size() * sizeof(float)), device_);
    queue_->copy_to_device(frequencies_[i].data(), inv_freq.data(), frequencies_[i].bytes());
    queue_->wait();
  }
  const int64_t rows = most_rows();
  chosen_ = Buffer(rows * kIntBytes, device_);
  const int64_t bytes = stage_bytes(pools.groups);
  device_stage_ = Buffer(bytes, device_);
  for (Slot& slot : slots_) {
    slot.lists = Buffer::pinned(bytes);
    slot.ids = Buffer::pinned(rows * kIntBytes);
    slot.done = std::make_unique<gpu::Event>(device_);
  }
  if (samples()) {
    host_logits_ = Buffer::pinned(bucket_for(limits_.max_sequences) * model_.tables->vocab *
                                  static_cast<int64_t>(sizeof(float)));
  }
  if (pools.received) queue_->zero(pools.received.data, pools.received.bytes());
  if (!mesh.last_stage()) {
    mesh.stages_comm->reserve(most_rows() * model_.tables->hidden * kIntBytes, mesh.stage + 1);
    for (const Carry& carry : model_.tables->carries) {
      if (carry.sent) mesh.stages_comm->reserve(most_rows() * carry.cols * kIntBytes, mesh.stage + 1);
    }
  }
  int64_t widest = 0;  // of the carries of drafts
  for (const Carry& carry : model_.tables->carries) widest = std::max(widest, carry.drafts ? carry.cols : 0);
  if (widest > 0) {
    std::vector<int32_t> positions(static_cast<size_t>(widest));
    std::iota(positions.begin(), positions.end(), 0);
    first_positions_ = Buffer(widest * kIntBytes, device_);
    queue_->copy_to_device(first_positions_.data(), positions.data(), first_positions_.bytes());
    queue_->wait();
  }
  queue_->activate();
  const bool tell = log_enabled(LogLevel::debug);
  const int64_t free = tell ? gpu::device_info(device_).free_bytes : 0, start = now_us();
  for (int64_t bucket = 1; bucket <= bucket_for(limits_.max_sequences); bucket *= 2) {
    record({Part::step, bucket, 1});
    if (!drafts()) continue;
    record({Part::first_draft, bucket, 1});
    record({Part::next_draft, bucket, 1});
  }
  for_each_drafted([&](int64_t sequences, int64_t rows_each) {
    record({Part::step, sequences, rows_each});
    record({Part::first_draft, sequences, rows_each});
  });
  if (tell) {
    log_debug("{} graphs in {:.2f} s: they, kernels and libraries take {}", recorded_.size(),
              seconds_since(start), format_bytes(free - gpu::device_info(device_).free_bytes));
  }
}

// The shapes of recorded steps with drafts.
template <class Visit>
void DeviceStep::for_each_drafted(Visit visit) const {
  if (!drafts()) return;
  for (int64_t sequences = 1; sequences <= std::min(kFewSequences, limits_.max_sequences); ++sequences) {
    for (int64_t each = 2; each <= 1 + limits_.drafts && sequences * each <= limits_.max_rows; ++each) {
      visit(sequences, each);
    }
  }
}

// The recorded work that does the plan's.
std::optional<DeviceStep::RecordedKey> DeviceStep::key_of(const StepPlan& plan, Part part) const {
  if (plan.empty() || observer_ != nullptr) return std::nullopt;
  const auto sequences = static_cast<int64_t>(plan.sequences.size());
  const int64_t each = plan.sequences.front().tokens;
  for (const PlannedSequence& s : plan.sequences) {
    const bool wanted = part == Part::step ? s.logit_rows == each && s.drafts == each - 1 : s.logit_rows == 1;
    if (s.tokens != each || !wanted) return std::nullopt;
  }
  const RecordedKey key{part, each == 1 ? bucket_for(sequences) : sequences, each};
  return recorded_.contains(key) ? std::optional(key) : std::nullopt;
}

DeviceStep::Shape DeviceStep::shape_of(const StepPlan& plan, const Extra& extra) const {
  int64_t logit_rows = 0;
  for (const PlannedSequence& s : plan.sequences) logit_rows += s.logit_rows;
  return {plan.rows(),
          static_cast<int64_t>(plan.sequences.size()),
          logit_rows,
          static_cast<int64_t>(extra.chosen_rows.size()),
          static_cast<int64_t>(extra.recurrent.size()),
          plan.rows()};
}

// Writes the plan's lists, with `padded_rows` rows that belong to nobody behind them, and sends them. Returns
// where the choices lie, which nothing that is recorded reads.
int64_t DeviceStep::stage(const StepPlan& plan, const Extra& extra, int64_t padded_rows, int64_t capacity,
                          std::span<const ops::TokenChoice> choices) {
  const Layout layout(capacity, pools_.groups);
  const Buffer& lists = next_slot().lists;
  auto* host = static_cast<std::byte*>(lists.data());
  auto* device = static_cast<std::byte*>(device_stage_.data());
  auto ints = [&](int64_t offset) { return reinterpret_cast<int32_t*>(host + offset); };
  const int64_t rows = plan.rows(), total = rows + padded_rows;

  auto put = [&](int64_t offset, std::span<const int32_t> values, int32_t padding) {
    int32_t* end = std::copy(values.begin(), values.end(), ints(offset));
    std::fill_n(end, padded_rows, padding);
  };
  put(0, plan.token_ids, 0);
  put(layout.positions, plan.positions, 0);
  if (!extra.rope_lengths.empty()) put(layout.lengths, extra.rope_lengths, 1);
  int32_t* wanted = ints(layout.logit_rows);
  for (const PlannedSequence& s : plan.sequences) {
    for (int64_t i = s.tokens - s.logit_rows; i < s.tokens; ++i)
      *wanted++ = static_cast<int32_t>(s.first_row + i);
  }
  for (int64_t i = rows; i < total; ++i) *wanted++ = static_cast<int32_t>(i);
  int32_t* chosen = std::copy(extra.chosen_rows.begin(), extra.chosen_rows.end(), ints(layout.chosen_rows));
  std::fill_n(chosen, padded_rows, 0);
  auto* recurrent = reinterpret_cast<ops::RecurrentSequence*>(host + layout.recurrent);
  recurrent = std::copy(extra.recurrent.begin(), extra.recurrent.end(), recurrent);
  for (int64_t i = rows; i < total; ++i) *recurrent++ = {static_cast<int32_t>(i), 1, kNoSlot, 0};

  int64_t end = layout.tables;
  for (int64_t g = 0; g < pools_.groups; ++g) {
    auto* sequence = reinterpret_cast<ops::AttentionSequence*>(host + layout.sequences) + g * capacity;
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const PlannedSequence& s = plan.sequences[i];
      const BlockTableView table = plan.table(static_cast<int64_t>(i), g);
      const auto count = static_cast<int64_t>(table.ids.size());
      CHECK(end + count * kIntBytes <= lists.bytes(), "block tables of {} bytes", end + count * kIntBytes);
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
  const int64_t choices_at = aligned(end);
  if (!choices.empty()) {
    end = choices_at + static_cast<int64_t>(choices.size_bytes());
    CHECK(end <= lists.bytes(), "{} choices", choices.size());
    std::copy(choices.begin(), choices.end(), reinterpret_cast<ops::TokenChoice*>(host + choices_at));
  }
  queue_->copy_pinned(device, host, end);
  return choices_at;
}

// Enqueued work sees a step through these.
class DeviceStep::Views {
 public:
  Views(const DeviceStep& step, Stream& stream, StepArena& arena, const Shape& shape, const StepPools& pools,
        bool states, int draft_step)
      : stream_(stream), arena_(arena) {
    const Layout layout(shape.capacity, pools.groups);
    const auto* staged = static_cast<const std::byte*>(step.device_stage_.data());
    auto ints = [&](int64_t offset, int64_t count) {
      return std::span(reinterpret_cast<const int32_t*>(staged + offset), static_cast<size_t>(count));
    };
    for (int64_t g = 0; g < pools.groups; ++g) {
      const auto* sequences =
          reinterpret_cast<const ops::AttentionSequence*>(staged + layout.sequences) + g * shape.capacity;
      const auto count = static_cast<size_t>(shape.sequences);
      attention_.push_back({std::span(sequences, count), static_cast<int32_t>(step.limits_.block_size),
                            static_cast<int32_t>(shape.rows)});
      if (shape.lists == nullptr) continue;
      const auto* known = reinterpret_cast<const ops::AttentionSequence*>(shape.lists + layout.sequences);
      attention_.back().known = {known + g * shape.capacity, count};
    }
    chosen_rows = ints(layout.chosen_rows, shape.chosen_rows);
    batch_ = {.token_ids = ints(0, shape.rows),
              .positions = ints(layout.positions, shape.rows),
              .rope_lengths = ints(layout.lengths, shape.rows),
              .logit_rows = ints(layout.logit_rows, shape.logit_rows),
              .attention = attention_,
              .recurrent = {reinterpret_cast<const ops::RecurrentSequence*>(staged + layout.recurrent),
                            static_cast<size_t>(shape.recurrent)},
              .open_rows = states ? chosen_rows : std::span<const int32_t>{}};
    arena.begin_step();
    const ModelTables& tables = *step.model_.tables;
    for (size_t i = 0; i < tables.ropes.size(); ++i) {
      const ops::RopeParameters& rope = tables.ropes[i];
      const int64_t half = rope.rotary_dim / 2;
      angles_.push_back(
          {arena.alloc(DType::f32, {shape.rows, half}), arena.alloc(DType::f32, {shape.rows, half})});
      const std::span inv_freq(static_cast<const float*>(step.frequencies_[i].data()),
                               static_cast<size_t>(half));
      ops::run(stream, angles_of_rope(rope, angles_.back(), batch_, inv_freq));
    }
    carries_ = step.carries(pools, shape.rows);
    context.emplace(Ctx{stream_, arena_, batch_, pools.kv,
                        states ? pools.states : std::span<const SlotStates>{}, angles_, tables.mesh,
                        step.model_.precision, step.observer_, carries_, draft_step});
  }
  Views(const Views&) = delete;

  std::span<const int32_t> chosen_rows;
  std::optional<Ctx> context;

 private:
  Stream& stream_;
  StepArena& arena_;
  std::vector<ops::AttentionBatch> attention_;
  Batch batch_;
  std::vector<ops::RopeAngles> angles_;
  std::vector<Tensor> carries_;
};

// What the layers carry, by handle.
std::vector<Tensor> DeviceStep::carries(const StepPools& pools, int64_t rows) const {
  std::vector<Tensor> carries;
  for (size_t i = 0; i < model_.tables->carries.size(); ++i) {
    void* data = pools.carried[i].data();
    if (data == nullptr) data = reinterpret_cast<void*>(kAlignment);  // when planning
    carries.push_back(make_tensor(data, DType::i32, {rows, model_.tables->carries[i].cols}, device_));
  }
  return carries;
}

// Enqueues (or records, or with a planning queue only measures) the kernels of a step, up to the largest
// logits.
DeviceStep::Outcome DeviceStep::forward(Stream& stream, StepArena& arena, const Shape& shape,
                                        const StepPools& pools) const {
  ops::run(stream,
           ops::TakeChosen{{static_cast<int32_t*>(device_stage_.data()), static_cast<size_t>(shape.rows)},
                           chosen(most_rows())});
  Views views(*this, stream, arena, shape, pools, true, 0);
  const Tensor received = pools.received ? pools.received.rows(0, shape.rows) : Tensor{};
  Tensor normalised;
  const Tensor result = model_.model->forward(*views.context, received, drafts() ? &normalised : nullptr);
  if (drafts()) stream.queue().copy_on_device(pools.hidden.data, normalised.data, normalised.bytes());
  if (!model_.tables->mesh.last_stage()) return {.hidden = result};
  if (result) ops::run(stream, ops::ArgMax{chosen(result.dim(0)), result.cols(0, choosable())});
  return {.logits = result};
}

DeviceStep::Outcome DeviceStep::draft(Stream& stream, StepArena& arena, const Shape& shape,
                                      const StepPools& pools, int step) const {
  Views views(*this, stream, arena, shape, pools, false, step);
  const Tensor from = views.context->alloc(shape.rows, model_.tables->hidden);
  ops::run(stream, ops::GatherRows{from, pools.hidden, views.chosen_rows});
  Outcome out;
  out.logits = model_.model->draft(*views.context, from, &out.hidden);
  if (out.logits) {
    ops::run(stream, ops::ArgMax{chosen(out.logits.dim(0)), out.logits.cols(0, choosable())});
  }
  return out;
}

void DeviceStep::keep_rows(Stream& stream, StepArena& arena, const Shape& shape,
                           const StepPools& pools) const {
  Views views(*this, stream, arena, shape, pools, true, 0);
  model_.model->keep_rows(*views.context);
}

DeviceStep::Outcome DeviceStep::run(Stream& stream, const Shape& shape, Part part) const {
  if (part == Part::step) return forward(stream, *arena_, shape, pools_);
  return draft(stream, *arena_, shape, pools_, part == Part::first_draft ? 0 : 1);
}

// Sequences of one row are nobody's; those of more share the first block and slot, whose content nobody needs
// yet.
void DeviceStep::record(const RecordedKey& key) {
  const int64_t rows = key.sequences * key.rows_each;
  const bool step = key.part == Part::step, recurrent = step && !pools_.states.empty(),
             shared = key.rows_each > 1;
  StepPlan plan{.block_size = limits_.block_size, .groups = pools_.groups};
  std::vector<int32_t> all(static_cast<size_t>(rows));
  std::iota(all.begin(), all.end(), 0);
  std::vector<ops::RecurrentSequence> sequences;
  const int64_t blocks = (key.rows_each + limits_.block_size - 1) / limits_.block_size;
  if (shared) plan.blocks.assign(static_cast<size_t>(blocks), 0);
  for (int64_t i = 0; shared && i < key.sequences; ++i) {
    const int64_t drafts = step ? key.rows_each - 1 : 0;
    plan.sequences.push_back(
        {.first_row = plan.rows(), .tokens = key.rows_each, .drafts = drafts, .logit_rows = 1 + drafts});
    if (recurrent) {
      const auto each = static_cast<int32_t>(key.rows_each);
      sequences.push_back({static_cast<int32_t>(plan.rows()), each, 0, each});
    }
    for (int64_t r = 0; r < key.rows_each; ++r) {
      plan.token_ids.push_back(0);
      plan.positions.push_back(static_cast<int32_t>(r));
    }
    for (int64_t g = 0; g < plan.groups; ++g) plan.tables.push_back({0, 0, blocks});
  }
  const int64_t chosen_rows = !step || (recurrent && shared) ? rows : 0;
  const Extra extra{.rope_lengths = plan.positions,
                    .chosen_rows = std::span(all).first(static_cast<size_t>(shared ? chosen_rows : 0)),
                    .recurrent = sequences};
  stage(plan, extra, shared ? 0 : rows, rows);
  Stream stream(*queue_);
  const Shape shape{
      rows, key.sequences, step ? rows : key.sequences, chosen_rows, recurrent ? key.sequences : 0, rows};
  // Once for real: kernels are loaded at their first use. Without the other ranks: they may come later.
  rehearse(true);
  run(stream, shape, key.part);
  queue_->wait();
  rehearse(false);
  queue_->begin_recording();
  const Outcome out = run(stream, shape, key.part);
  recorded_[key] = {queue_->end_recording(), out};
}

bool DeviceStep::samples() const {
  const Mesh& mesh = model_.tables->mesh;
  return mesh.last_stage() && mesh.attn->rank() == 0;
}

void DeviceStep::rehearse(bool on) const {
  const Mesh& mesh = model_.tables->mesh;
  for (Communicator* axis : {mesh.attn, mesh.mlp}) axis->rehearse(on);
}

void DeviceStep::copy_states(std::span<const StepPlan::StateCopy> copies) {
  for (const StepPlan::StateCopy& copy : copies) {
    for (const SlotStates& state : pools_.states) {
      for (const Tensor& t : {state.conv, state.recurrent}) {
        const int64_t bytes = t.rows(copy.to, 1).bytes();
        if (copy.from == kNoSlot) {
          queue_->zero(t.row_bytes(copy.to), bytes);
        } else if (copy.from != copy.to) {
          queue_->copy_on_device(t.row_bytes(copy.to), t.row_bytes(copy.from), bytes);
        }
      }
    }
  }
}

// Enqueues the plan, the choice of its tokens, and the copy of their ids to the next slot.
DeviceStep::Outcome DeviceStep::enqueue(const StepPlan& plan, const Extra& extra, Part part,
                                        std::span<const ops::TokenChoice> choices) {
  Shape shape = shape_of(plan, extra);
  if (std::ranges::all_of(choices, [](const auto& choice) { return choice.temperature < ops::kGreedy; })) {
    choices = {};
  }
  Stream stream(*queue_);
  const std::optional<RecordedKey> key = key_of(plan, part);
  const int64_t rows = key ? key->sequences * key->rows_each : shape.rows;  // of every stage
  const int64_t choices_at = stage(plan, extra, rows - shape.rows, rows, choices);
  const std::vector<Tensor> carried = carries(pools_, rows);
  if (part == Part::step && pools_.received)
    receive_stage(stream, *model_.tables, pools_.received.rows(0, rows), carried);
  Outcome out;
  if (key) {
    const Recorded& recorded = recorded_.at(*key);
    queue_->start(*recorded.graph);
    out = recorded.out;
  } else {
    shape.lists = static_cast<const std::byte*>(next_slot().lists.data());
    out = run(stream, shape, part);
  }
  send_stage(stream, *model_.tables, out.hidden, carried);
  if (out.logits) out.logits = out.logits.rows(0, shape.logit_rows);
  if (out.hidden) out.hidden = out.hidden.rows(0, shape.logit_rows);
  if (!choices.empty()) {
    const auto* staged = static_cast<const std::byte*>(device_stage_.data()) + choices_at;
    ops::run(stream, ops::DrawTokens{chosen(shape.logit_rows),
                                     out.logits.cols(0, choosable()),
                                     {reinterpret_cast<const ops::TokenChoice*>(staged), choices.size()}});
  }
  Slot& slot = next_slot();
  slot.rows = out.logits ? shape.logit_rows : 0;
  queue_->copy_pinned(slot.ids.data(), chosen_.data(), slot.rows * kIntBytes);
  return out;
}

void DeviceStep::start(const StepPlan& plan, std::span<const int32_t> rope_lengths,
                       std::span<const ops::TokenChoice> choices) {
  CHECK(started_ - finished_ < 2, "two steps are under way");
  queue_->activate();
  copy_states(plan.state_copies);
  const std::vector<ops::RecurrentSequence> recurrent = recurrent_sequences(plan);
  const std::vector<int32_t> open = recurrent.empty() ? std::vector<int32_t>{} : open_rows(plan);
  logits_ = enqueue(plan, {rope_lengths, open, recurrent}, Part::step, choices).logits;
  next_slot().done->record(*queue_);
  ++started_;
}

std::span<const int32_t> DeviceStep::finish() {
  CHECK(finished_ < started_, "no step is under way");
  Slot& slot = slots_[static_cast<size_t>(finished_++ % 2)];
  slot.done->wait();
  return {static_cast<const int32_t*>(slot.ids.data()), static_cast<size_t>(slot.rows)};
}

Tensor DeviceStep::draft(const StepPlan& plan, std::span<const int32_t> rope_lengths,
                         std::span<const int32_t> hidden_rows, int step,
                         std::span<const ops::TokenChoice> choices) {
  CHECK(started_ == finished_, "a step is under way");
  queue_->activate();
  if (step > 0) take_rows_of_carries(hidden_rows);
  const Outcome out = enqueue(plan, {rope_lengths, hidden_rows, {}},
                              step == 0 ? Part::first_draft : Part::next_draft, choices);
  if (out.hidden) {
    queue_->copy_on_device(pools_.hidden.data, out.hidden.data, out.hidden.bytes());
    if (step == 0) leave_carries(plan);
  }
  queue_->wait();
  const Slot& slot = next_slot();
  drafted_ids_ = {static_cast<const int32_t*>(slot.ids.data()), static_cast<size_t>(slot.rows)};
  return out.logits;
}

void DeviceStep::keep_rows(const StepPlan& plan, std::span<const ops::RecurrentSequence> sequences) {
  queue_->activate();
  Stream stream(*queue_);
  const std::vector<int32_t> open = open_rows(plan);
  const Extra extra{{}, open, sequences};
  stage(plan, extra, 0, plan.rows());
  keep_rows(stream, *arena_, shape_of(plan, extra), pools_);
  queue_->wait();
}

// Rows `rows`, ascending, of what the drafter's layers leave for its later steps become rows 0, 1, ...
void DeviceStep::take_rows_of_carries(std::span<const int32_t> rows) {
  for (size_t i = 0; i < model_.tables->carries.size(); ++i) {
    const Carry& carry = model_.tables->carries[i];
    if (!carry.drafts) continue;
    auto* data = static_cast<int32_t*>(pools_.carried[i].data());
    for (size_t r = 0; r < rows.size(); ++r) {
      if (rows[r] == static_cast<int32_t>(r)) continue;
      queue_->copy_on_device(data + static_cast<int64_t>(r) * carry.cols, data + rows[r] * carry.cols,
                             carry.cols * kIntBytes);
    }
  }
}

// As ModelInstance::leave_carries.
void DeviceStep::leave_carries(const StepPlan& plan) {
  const std::vector<int32_t> rows = logit_rows(plan);
  take_rows_of_carries(rows);
  for (size_t i = 0; i < model_.tables->carries.size(); ++i) {
    const Carry& carry = model_.tables->carries[i];
    if (!carry.drafts) continue;
    auto* data = static_cast<int32_t*>(pools_.carried[i].data());
    for (size_t r = 0; r < rows.size(); ++r) {
      if (plan.positions[rows[r]] >= carry.cols) continue;
      queue_->copy_on_device(data + static_cast<int64_t>(r) * carry.cols, first_positions_.data(),
                             carry.cols * kIntBytes);
    }
  }
}

Tensor DeviceStep::to_host(const Tensor& logits) {
  // Prompt logits may be many more than a step of decodes has.
  if (logits.bytes() > host_logits_.bytes()) host_logits_ = Buffer::pinned(logits.bytes());
  queue_->copy_to_host(host_logits_.data(), logits.data, logits.bytes());
  queue_->wait();
  return make_tensor(host_logits_.data(), DType::f32, {logits.dim(0), logits.dim(1)});
}

}  // namespace atom
