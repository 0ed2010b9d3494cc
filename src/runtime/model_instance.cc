#include "runtime/model_instance.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "models/registry.h"
#include "ops/embed.h"
#include "runtime/cache_scales.h"
#include "runtime/upload.h"

namespace atom {
namespace {

// Virtual size of each half of the step arena. Pages are taken only when written, so this bounds, not costs.
constexpr int64_t kArenaHalfBytes = int64_t{64} << 30;

}  // namespace

int64_t drafted_sequences(const StepPlan& plan) {
  int64_t count = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    if (plan.sequences[i].drafts > 0) count = static_cast<int64_t>(i) + 1;
  }
  return count;
}

std::vector<int32_t> logit_rows(const StepPlan& plan) {
  std::vector<int32_t> rows;
  for (const PlannedSequence& s : plan.sequences) {
    for (int64_t i = s.tokens - s.logit_rows; i < s.tokens; ++i)
      rows.push_back(static_cast<int32_t>(s.first_row + i));
  }
  return rows;
}

std::vector<ops::RecurrentSequence> recurrent_sequences(const StepPlan& plan) {
  std::vector<ops::RecurrentSequence> sequences;
  for (const PlannedSequence& s : plan.sequences) {
    if (s.slot == kNoSlot) break;
    const auto rows = static_cast<int32_t>(s.tokens);
    sequences.push_back({static_cast<int32_t>(s.first_row), rows, s.slot, s.drafts > 0 ? rows : 0});
  }
  return sequences;
}

std::vector<int32_t> open_rows(const StepPlan& plan) {
  const int64_t drafted = drafted_sequences(plan);
  if (drafted == 0) return {};
  const PlannedSequence& last = plan.sequences[static_cast<size_t>(drafted - 1)];
  std::vector<int32_t> rows(static_cast<size_t>(last.first_row + last.tokens));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

void receive_stage(Stream& stream, const ModelTables& tables, const Tensor& hidden,
                   std::span<const Tensor> carries) {
  const Mesh& mesh = tables.mesh;
  if (mesh.first_stage()) return;
  mesh.stages_comm->recv(stream, hidden, mesh.stage - 1);
  for (size_t i = 0; i < carries.size(); ++i) {
    if (tables.carries[i].received) mesh.stages_comm->recv(stream, carries[i], mesh.stage - 1);
  }
}

void send_stage(Stream& stream, const ModelTables& tables, const Tensor& hidden,
                std::span<const Tensor> carries) {
  const Mesh& mesh = tables.mesh;
  if (mesh.last_stage()) return;
  mesh.stages_comm->send(stream, hidden, mesh.stage + 1);
  for (size_t i = 0; i < carries.size(); ++i) {
    if (tables.carries[i].sent) mesh.stages_comm->send(stream, carries[i], mesh.stage + 1);
  }
}

ModelInstance::ModelInstance(const ConfigReader& config, const Mesh& mesh, std::vector<int> stage_partition,
                             ComputeOptions options, const DrafterOptions& drafter)
    : options_(options) {
  tables_.mesh = mesh;
  tables_.device = options.device;
  tables_.stage_partition = std::move(stage_partition);
  tables_.drafter.wanted = drafter.wanted;
  tables_.drafter.stores_own = drafter.stores_own;
  model_ = make_model(Scope(tables_), config);
  CHECK(tables_.lacking.empty(), "{}", tables_.lacking);
  require_cache_types(tables_, options.cache);
  for (const ops::RopeParameters& p : tables_.ropes) {
    ropes_.push_back({p, ops::rope_inv_freq(p)});
  }
}

void ModelInstance::load(const Checkpoint& checkpoint, LoadOptions options) {
  if (options_.cache.dtype == DType::f8e4m3) kv_scales_ = read_cache_scales(tables_, checkpoint);
  if (!on_gpu()) {
    weights_ = load_weights(tables_, checkpoint, options);
    return;
  }
  options.populate = false;  // the upload reads each page once
  upload(load_weights(tables_, checkpoint, options), options);
}

void ModelInstance::load_dummy(DType dtype, const LoadOptions& options) {
  weights_ = dummy_weights(tables_, dtype, options);
  if (on_gpu()) upload(std::move(weights_), options);
}

void ModelInstance::place(const Checkpoint* checkpoint, DType dtype) {
  CHECK(on_gpu());
  const LoadOptions nothing{.populate = false, .values = false};
  weights_ = checkpoint != nullptr ? load_weights(tables_, *checkpoint, nothing)
                                   : dummy_weights(tables_, dtype, nothing);
  device_weight_bytes_ = place_nowhere(tables_, widened_type(), options_.device);
}

DType ModelInstance::widened_type() const {
  return options_.precision == ops::Precision::exact ? DType::f32 : DType::bf16;
}

void ModelInstance::upload(Weights host, const LoadOptions& options) {
  weights_ = upload_weights(tables_, std::move(host), options, widened_type(), options_.device);
  device_weight_bytes_ = 0;
  for (const Buffer& buffer : weights_.buffers) device_weight_bytes_ += buffer.bytes();
}

void ModelInstance::prepare_step(const StepLimits& limits) {
  if (!on_gpu()) return;
  const StepModel model{
      .model = model_.get(), .tables = &tables_, .precision = options_.precision, .cache = options_.cache};
  device_step_ = std::make_unique<DeviceStep>(options_.device, model, limits);
}

DeviceMemory ModelInstance::device_memory() const {
  CHECK(device_step_ != nullptr);
  DeviceMemory memory{.weights = device_weight_bytes_, .step = device_step_->memory_bytes()};
  // What allocate() takes beside the pools, and messages to this stage on their way.
  int64_t row_bytes = drafts() ? 4 * tables_.hidden : 0;
  if (!tables_.mesh.first_stage()) row_bytes += 2 * 4 * tables_.hidden;
  for (const Carry& carry : tables_.carries) row_bytes += (carry.received ? 2 : 1) * 4 * carry.cols;
  if (tables_.drafter.wanted) {
    for (const LayerState& state : tables_.states) row_bytes += 4 * state.row;
  }
  memory.step += device_step_->most_rows() * row_bytes;
  return memory;
}

std::vector<CacheSpec> ModelInstance::cache_specs() const {
  std::vector<CacheSpec> specs;
  for (const LayerCache& cache : tables_.caches) specs.push_back(cache.spec(options_.cache));
  for (const LayerState& state : tables_.states) specs.push_back(state.spec());
  return specs;
}

void ModelInstance::allocate(const CachePlan& plan, int64_t max_batched_tokens) {
  CHECK(!on_gpu() || device_step_ != nullptr);
  const int64_t rows = on_gpu() ? device_step_->most_rows() : max_batched_tokens;
  for (const CacheGroup& group : plan.groups) group_windows_.push_back(group.window);
  for (const LayerCache& cache : tables_.caches) {
    // A window that spans every sequence is kept as a paged layer.
    const int64_t window = cache.window >= plan.limits.max_model_len ? 0 : cache.window;
    size_t g = 0;
    while (g < group_windows_.size() && group_windows_[g] != window) ++g;
    CHECK(g < group_windows_.size(), "no cache group with window {}", window);
    KvPool& pool = kv_.emplace_back();
    pool.group = static_cast<int>(g);
    if (!kv_scales_.empty()) pool.scales = kv_scales_[kv_.size() - 1];
    const int64_t blocks = plan.groups[g].blocks, block_size = plan.limits.block_size;
    auto plane = [&](DType dtype, std::initializer_list<int64_t> shape) {
      Tensor t = make_tensor(nullptr, dtype, shape, options_.device);
      t.data = kv_buffers_.emplace_back(t.bytes(), options_.device).data();
      return t;
    };
    const DType dtype = cache.dtype(options_.cache);
    pool.k = plane(dtype, {blocks, cache.heads, block_size, cache.key_dim});
    if (cache.value_dim > 0) pool.v = plane(dtype, {blocks, cache.heads, block_size, cache.value_dim});
    if (cache.has_key_scales(options_.cache)) pool.key_scales = plane(DType::f32, {blocks, block_size});
  }
  // On the host, pages of slots are taken only when written, as those of blocks are.
  for (const LayerState& state : tables_.states) {
    auto plane = [&](int64_t rows, int64_t elements) {
      Buffer& buffer = kv_buffers_.emplace_back(4 * rows * elements, options_.device);
      return make_tensor(buffer.data(), DType::f32, {rows, elements}, options_.device);
    };
    SlotStates& states = states_.emplace_back();
    states.conv = plane(plan.states.slots, state.conv);
    states.recurrent = plane(plan.states.slots, state.recurrent);
    if (tables_.drafter.wanted) states.rows = plane(rows, state.row);
  }
  const auto stream_rows = [&] { return Buffer(rows * tables_.hidden * int64_t{4}, options_.device); };
  if (drafts()) hidden_ = stream_rows();
  if (!tables_.mesh.first_stage()) received_ = stream_rows();
  for (const Carry& carry : tables_.carries)
    carried_.emplace_back(rows * carry.cols * int64_t{4}, options_.device);
  if (on_gpu()) {
    const auto view = [&](const Buffer& buffer) {
      if (buffer.data() == nullptr) return Tensor{};
      return make_tensor(buffer.data(), DType::f32, {rows, tables_.hidden}, options_.device);
    };
    device_step_->prepare(
        {kv_, states_, carried_, view(hidden_), view(received_), static_cast<int64_t>(plan.groups.size())});
    return;
  }
  arena_ = std::make_unique<StepArena>(kArenaHalfBytes);
}

void ModelInstance::copy_states(std::span<const StepPlan::StateCopy> copies) {
  for (const StepPlan::StateCopy& copy : copies) {
    for (const SlotStates& state : states_) {
      for (const Tensor& t : {state.conv, state.recurrent}) {
        const size_t bytes = static_cast<size_t>(t.rows(copy.to, 1).bytes());
        if (copy.from == kNoSlot) {
          std::memset(t.row_bytes(copy.to), 0, bytes);
        } else if (copy.from != copy.to) {
          std::memcpy(t.row_bytes(copy.to), t.row_bytes(copy.from), bytes);
        }
      }
    }
  }
}

std::vector<ops::RopeAngles> ModelInstance::compute_angles(Stream& stream, const Batch& batch) {
  std::vector<ops::RopeAngles> angles;
  for (const RopeTable& rope : ropes_) angles.push_back(compute_angles(stream, rope, batch));
  return angles;
}

ops::RopeAngles ModelInstance::compute_angles(Stream& stream, const RopeTable& rope, const Batch& batch) {
  const int64_t half = rope.parameters.rotary_dim / 2;
  const ops::RopeAngles out{arena_->alloc(DType::f32, {batch.tokens(), half}),
                            arena_->alloc(DType::f32, {batch.tokens(), half})};
  ops::run(stream, angles_of_rope(rope.parameters, out, batch, rope.inv_freq));
  return out;
}

ops::ComputeRopeAngles angles_of_rope(const ops::RopeParameters& rope, const ops::RopeAngles& out,
                                      const Batch& batch, std::span<const float> inv_freq) {
  ops::ComputeRopeAngles op;
  op.out = out;
  op.positions = batch.positions;
  op.inv_freq = inv_freq;
  op.magnitude = ops::rope_magnitude(rope);
  if (rope.kind == ops::RopeKind::dynamic) {
    op.lengths = batch.rope_lengths;
    op.theta = static_cast<float>(rope.theta);
    op.factor = static_cast<float>(rope.factor);
    op.original_length = rope.original_max_position;
  }
  return op;
}

// A plan as the ops see it.
class ModelInstance::StepViews {
 public:
  StepViews(const StepPlan& plan, std::span<const int32_t> rope_lengths, int64_t groups)
      : wanted_(logit_rows(plan)), sequences_(groups), attention_(groups) {
    padded_.reserve(plan.sequences.size() * groups);
    for (int64_t g = 0; g < groups; ++g) add_group(plan, g);
    recurrent_ = recurrent_sequences(plan);
    if (!recurrent_.empty()) open_ = open_rows(plan);
    batch = {plan.token_ids, plan.positions, rope_lengths, wanted_, attention_, recurrent_, open_};
  }
  StepViews(const StepViews&) = delete;

  Batch batch;

 private:
  void add_group(const StepPlan& plan, int64_t g) {
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const PlannedSequence& s = plan.sequences[i];
      const BlockTableView table = plan.table(static_cast<int64_t>(i), g);
      const BlockId* blocks = table.ids.data();
      if (table.first_block > 0) {
        auto& full = padded_.emplace_back(table.first_block, kNoBlock);
        full.insert(full.end(), table.ids.begin(), table.ids.end());
        blocks = full.data();
      }
      sequences_[g].push_back({static_cast<int32_t>(s.first_row), static_cast<int32_t>(s.tokens),
                               static_cast<int32_t>(s.context), blocks});
    }
    attention_[g] = {sequences_[g], static_cast<int32_t>(plan.block_size), static_cast<int32_t>(plan.rows())};
  }

  std::vector<int32_t> wanted_, open_;
  std::vector<std::vector<ops::AttentionSequence>> sequences_;  // per group
  std::vector<std::vector<BlockId>> padded_;                    // tables of window groups, from block 0
  std::vector<ops::AttentionBatch> attention_;
  std::vector<ops::RecurrentSequence> recurrent_;
};

void ModelInstance::observe(Observer* observer) {
  observer_ = tables_.mesh.attn->rank() == 0 ? observer : nullptr;
  if (on_gpu()) device_step_->observe(observer_);
}

Tensor ModelInstance::forward(ThreadPool& pool, const StepPlan& plan, std::span<const int32_t> rope_lengths,
                              std::span<const ops::TokenChoice> choices) {
  if (on_gpu()) {
    device_step_->start(plan, rope_lengths, choices);
    chosen_ids_ = device_step_->finish();
    return device_step_->logits();
  }
  const StepViews views(plan, rope_lengths, static_cast<int64_t>(group_windows_.size()));
  copy_states(plan.state_copies);
  Stream stream(pool);
  arena_->begin_step();
  const std::vector<ops::RopeAngles> angles = compute_angles(stream, views.batch);
  const std::vector<Tensor> carries = carried_rows(plan.rows());
  Ctx c{stream, *arena_,      views.batch,        kv_,       states_,
        angles, tables_.mesh, options_.precision, observer_, carries};
  const Tensor received = make_tensor(received_.data(), DType::f32, {plan.rows(), tables_.hidden});
  receive_stage(stream, tables_, received, carries);
  Tensor normalised;
  const bool drafting = plan.drafting && drafts();
  const Tensor result = model_->forward(c, received, drafting ? &normalised : nullptr);
  if (drafting) std::memcpy(hidden_.data(), normalised.data, static_cast<size_t>(normalised.bytes()));
  send_stage(stream, tables_, result, carries);
  return tables_.mesh.last_stage() ? result : Tensor{};
}

Tensor ModelInstance::draft(ThreadPool& pool, const StepPlan& plan, std::span<const int32_t> rope_lengths,
                            std::span<const int32_t> hidden_rows, int step,
                            std::span<const ops::TokenChoice> choices) {
  if (on_gpu()) {
    const Tensor logits = device_step_->draft(plan, rope_lengths, hidden_rows, step, choices);
    chosen_ids_ = device_step_->drafted_ids();
    const bool wanted = logits && choices.empty() && tables_.mesh.attn->rank() == 0;
    return wanted ? device_step_->to_host(logits) : logits;
  }
  const StepViews views(plan, rope_lengths, static_cast<int64_t>(group_windows_.size()));
  const int64_t rows = plan.rows(), width = tables_.hidden, known = hidden_.bytes() / (4 * width);
  Stream stream(pool);
  arena_->begin_step();
  const std::vector<ops::RopeAngles> angles = compute_angles(stream, views.batch);
  if (step > 0) take_rows_of_carries(hidden_rows);
  const std::vector<Tensor> carries = carried_rows(rows);
  Ctx c{stream,  *arena_, views.batch, kv_, {}, angles, tables_.mesh, options_.precision,
        nullptr, carries, step};
  const Tensor from = c.alloc(rows, width), all = make_tensor(hidden_.data(), DType::f32, {known, width});
  ops::run(stream, ops::GatherRows{from, all, hidden_rows});
  Tensor output;
  const Tensor logits = model_->draft(c, from, &output);
  if (!output) return {};
  std::memcpy(hidden_.data(), output.data, static_cast<size_t>(output.bytes()));
  if (step == 0) leave_carries(views.batch);
  return logits;
}

void ModelInstance::keep_rows(ThreadPool& pool, const StepPlan& plan, std::span<const int32_t> kept) {
  std::vector<ops::RecurrentSequence> sequences = recurrent_sequences(plan);
  sequences.resize(static_cast<size_t>(drafted_sequences(plan)));
  for (size_t i = 0; i < sequences.size(); ++i) {
    // Those without drafts have their state already.
    sequences[i].dropped = sequences[i].rows - (plan.sequences[i].drafts > 0 ? kept[i] : 0);
  }
  if (on_gpu()) return device_step_->keep_rows(plan, sequences);
  StepViews views(plan, {}, 0);
  views.batch.recurrent = sequences;
  Stream stream(pool);
  arena_->begin_step();
  Ctx c{stream, *arena_, views.batch, kv_, states_, {}, tables_.mesh, options_.precision};
  model_->keep_rows(c);
}

// Rows `rows` of what the drafter's layers leave for its later steps become rows 0, 1, ...; rows are
// ascending.
void ModelInstance::take_rows_of_carries(std::span<const int32_t> rows) {
  for (size_t i = 0; i < tables_.carries.size(); ++i) {
    if (!tables_.carries[i].drafts) continue;
    const Tensor t =
        make_tensor(carried_[i].data(), DType::i32,
                    {carried_[i].bytes() / (4 * tables_.carries[i].cols), tables_.carries[i].cols});
    const size_t bytes = static_cast<size_t>(4 * t.dim(1));
    for (size_t r = 0; r < rows.size(); ++r) std::memmove(t.row_bytes(r), t.row_bytes(rows[r]), bytes);
  }
}

// What the drafter's first step chose for its logit rows goes to rows 0, 1, ... A row that had no more
// positions than are chosen had nothing to choose: a later step may have, and takes the first.
void ModelInstance::leave_carries(const Batch& batch) {
  take_rows_of_carries(batch.logit_rows);
  for (size_t i = 0; i < tables_.carries.size(); ++i) {
    if (!tables_.carries[i].drafts) continue;
    const Tensor t = carried(static_cast<int>(i), static_cast<int64_t>(batch.logit_rows.size()));
    for (int64_t r = 0; r < t.dim(0); ++r) {
      if (batch.positions[batch.logit_rows[r]] < t.dim(1))
        std::iota(t.row<int32_t>(r), t.row<int32_t>(r) + t.dim(1), 0);
    }
  }
}

std::vector<Tensor> ModelInstance::carried_rows(int64_t rows) {
  std::vector<Tensor> carries;
  for (size_t i = 0; i < tables_.carries.size(); ++i) carries.push_back(carried(static_cast<int>(i), rows));
  return carries;
}

Tensor ModelInstance::to_host(const Tensor& logits) {
  return device_step_ == nullptr ? logits : device_step_->to_host(logits);
}

Tensor ModelInstance::carried(int carry, int64_t rows) {
  return make_tensor(carried_[carry].data(), DType::i32, {rows, tables_.carries[carry].cols});
}

int64_t ModelInstance::weight_bytes_per_step() const {
  int64_t total = 0;
  for (const ParamEntry& param : tables_.params) {
    if (param.lookup_only) continue;
    int64_t bytes = 0;
    for (const ops::WeightPart& part : param.parts) bytes += part.bytes();
    total += param.read_share < 1 ? std::llround(static_cast<double>(bytes) * param.read_share) : bytes;
  }
  return total;
}

std::string ModelInstance::cache_types_text() const {
  return atom::cache_types_text(tables_, options_.cache);
}

int64_t ModelInstance::cache_bytes() const {
  int64_t total = 0;
  for (const Buffer& buffer : kv_buffers_) total += buffer.bytes();
  return total;
}

bool ModelInstance::rope_depends_on_length() const {
  for (const RopeTable& rope : ropes_) {
    if (rope.parameters.kind == ops::RopeKind::dynamic) return true;
  }
  return false;
}

}  // namespace atom
