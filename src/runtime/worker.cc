#include "runtime/worker.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "comm/device_communicator.h"
#include "runtime/drafting.h"

namespace atom {
namespace {

// How the tokens of the plan's logit rows are chosen where the logits are, those of drafts as if all before
// them were right; nothing if a sequence needs its logits, or a token that the device may choose must not be.
std::optional<std::vector<ops::TokenChoice>> device_choices(const StepPlan& plan,
                                                            std::span<const SequenceInput> inputs,
                                                            int64_t choosable) {
  std::vector<ops::TokenChoice> choices;
  choices.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PlannedSequence& s = plan.sequences[i];
    const SequenceInput& input = inputs[i];
    if (s.logit_rows == 0) continue;
    if (!s.sample || s.logit_rows != 1 + s.drafts || input.logits_sink != nullptr ||
        input.prompt_logprobs >= 0)
      return std::nullopt;
    SampleRequest request = input.sample;
    for (int64_t row = 0; row < s.logit_rows; ++row, ++request.output_index) {
      const std::optional<ops::TokenChoice> choice = device_choice(request, choosable);
      if (!choice) return std::nullopt;
      choices.push_back(*choice);
    }
  }
  return choices;
}

std::span<const int32_t> planned_drafts(const StepPlan& plan, const PlannedSequence& s) {
  return std::span(plan.token_ids)
      .subspan(static_cast<size_t>(s.first_row + s.tokens - s.drafts), static_cast<size_t>(s.drafts));
}

// The tokens that the device chose, as far as drafts are right.
void take_chosen(const StepPlan& plan, std::span<const int32_t> ids, std::vector<SampledSequence>& sequences,
                 std::vector<SequenceOutput>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const PlannedSequence& s = plan.sequences[i];
    if (!s.sample) continue;
    const auto choose = [&](size_t row) { return SampledToken{.id = ids[row], .top = {}}; };
    outputs[i].tokens = verify(sequences[i], choose, planned_drafts(plan, s));
    ids = ids.subspan(static_cast<size_t>(s.logit_rows));
  }
}

using AxisEnds = std::vector<std::unique_ptr<Communicator>>;

// An axis of ranks on these devices.
AxisEnds make_axis(std::span<const Device> devices, Traffic traffic) {
  if (devices.size() > 1 && devices.front().kind != Device::cpu)
    return device_communicators(devices, traffic);
  return in_process_communicators(static_cast<int>(devices.size()));
}

}  // namespace

// A rank and, if there are several, its thread.
struct Workers::Rank {
  Mesh mesh;
  Device device;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<ModelInstance> model;
  std::thread thread;
  std::mutex mutex;
  std::condition_variable wake;
  const std::function<void(Rank&)>* job = nullptr;
  bool stop = false;

  bool samples() const { return mesh.last_stage() && mesh.attn->rank() == 0; }

  // The other ranks would wait for this one for ever.
  [[noreturn]] void fail(std::string why) const {
    for (const Communicator* axis : {mesh.attn, mesh.stages_comm}) {
      if (const std::string problem = axis->problem(); !problem.empty()) why += "; " + problem;
    }
    log_error("rank {} of stage {} failed, and with it the program: {}", mesh.attn->rank(), mesh.stage, why);
    std::_Exit(1);
  }

  void loop() {
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return stop || job != nullptr; });
      if (stop) return;
      try {
        (*job)(*this);
      } catch (const std::exception& e) {
        fail(e.what());
      }
      job = nullptr;
      wake.notify_all();
    }
  }
};

Workers::Workers(const ConfigReader& config, const ParallelOptions& parallel, ComputeOptions compute) {
  const int tp = parallel.tp, pp = parallel.pp;
  if (tp < 1 || pp < 1 || tp > 256 || pp > 256 || tp * pp > 256)
    throw invalid("tp {} and pp {}: both at least 1, at most 256 ranks", tp, pp);
  const int ep = parallel.ep;
  if (ep < 1 || tp % ep != 0) throw invalid("--ep {}: must divide --tp {}", ep, tp);
  const int share = tp / ep;  // ranks that share an expert
  const int threads = std::max(1, parallel.threads / (tp * pp));
  std::vector<Device> devices = parallel.devices;
  devices.resize(static_cast<size_t>(tp * pp));
  std::vector<AxisEnds> tp_groups, pp_groups, expert_groups, expert_mlp_groups;
  for (int s = 0; s < pp; ++s)
    tp_groups.push_back(make_axis(std::span(devices).subspan(s * tp, tp), Traffic::all));
  for (int r = 0; r < tp; ++r) {
    std::vector<Device> column;
    for (int s = 0; s < pp; ++s) column.push_back(devices[static_cast<size_t>(s * tp + r)]);
    pp_groups.push_back(make_axis(column, Traffic::messages));
  }
  // Nothing travels along these: they say which experts a rank has, and which part of each.
  for (int i = 0; i < pp * share; ++i) expert_groups.push_back(in_process_communicators(ep));
  for (int i = 0; i < pp * ep; ++i) expert_mlp_groups.push_back(in_process_communicators(share));
  for (int stage = 0; stage < pp; ++stage) {
    for (int r = 0; r < tp; ++r) {
      Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>());
      Communicator* tensor_axis = tp_groups[stage][r].get();
      rank.mesh = {.attn = tensor_axis,
                   .mlp = tensor_axis,
                   .expert = expert_groups[stage * share + r % share][r / share].get(),
                   .expert_mlp = expert_mlp_groups[stage * ep + r / share][r % share].get(),
                   .stages_comm = pp_groups[r][stage].get(),
                   .stage = stage,
                   .stages = pp};
      rank.device = compute.device = devices[static_cast<size_t>(stage * tp + r)];
      rank.model = std::make_unique<ModelInstance>(config, rank.mesh, parallel.stage_partition, compute,
                                                   parallel.drafter);
      rank.pool = std::make_unique<ThreadPool>(threads);
    }
  }
  for (auto* groups : {&tp_groups, &pp_groups, &expert_groups, &expert_mlp_groups}) {
    for (auto& group : *groups) {
      for (auto& comm : group) communicators_.push_back(std::move(comm));
    }
  }
  if (ranks_.size() == 1) return;
  for (auto& rank : ranks_) rank->thread = std::thread([r = rank.get()] { r->loop(); });
}

Workers::~Workers() {
  for (auto& rank : ranks_) {
    if (!rank->thread.joinable()) continue;
    {
      const std::lock_guard lock(rank->mutex);
      rank->stop = true;
    }
    rank->wake.notify_all();
    rank->thread.join();
  }
}

void Workers::on_all_ranks(const std::function<void(Rank&)>& fn) {
  if (ranks_.size() == 1) return fn(*ranks_.front());
  for (auto& rank : ranks_) {
    const std::lock_guard lock(rank->mutex);
    rank->job = &fn;
    rank->wake.notify_all();
  }
  for (auto& rank : ranks_) {
    std::unique_lock lock(rank->mutex);
    rank->wake.wait(lock, [&] { return rank->job == nullptr; });
  }
}

void Workers::load(const Checkpoint& checkpoint, const LoadOptions& options) {
  for (auto& rank : ranks_) rank->model->load(checkpoint, options);
}

void Workers::load_dummy(DType dtype, const LoadOptions& options) {
  for (auto& rank : ranks_) rank->model->load_dummy(dtype, options);
}

void Workers::place(const Checkpoint* checkpoint, DType dtype) {
  for (auto& rank : ranks_) rank->model->place(checkpoint, dtype);
}

void Workers::prepare_step(const StepLimits& limits) {
  for (auto& rank : ranks_) rank->model->prepare_step(limits);
}

std::vector<CacheSpec> Workers::cache_specs() const {
  const int tp = ranks_.front()->mesh.attn->size();
  std::vector<CacheSpec> specs;
  for (size_t i = 0; i < ranks_.size(); i += tp) {  // the first rank of each stage; the others hold as much
    for (CacheSpec spec : ranks_[i]->model->cache_specs()) {
      spec.bytes_per_token *= tp;  // all ranks live in this machine's memory
      spec.state_bytes *= tp;
      specs.push_back(spec);
    }
  }
  return specs;
}

std::vector<Device> Workers::devices() const {
  std::vector<Device> devices;
  for (const auto& rank : ranks_) {
    if (std::find(devices.begin(), devices.end(), rank->device) == devices.end())
      devices.push_back(rank->device);
  }
  return devices;
}

DeviceMemory Workers::device_memory(Device device) const {
  DeviceMemory all;
  for (const auto& rank : ranks_) {
    if (rank->device != device) continue;
    const DeviceMemory memory = rank->model->device_memory();
    all.weights += memory.weights;
    all.step += memory.step;
  }
  return all;
}

std::vector<CacheSpec> Workers::cache_specs_on(Device device) const {
  std::vector<CacheSpec> specs;
  for (const auto& rank : ranks_) {
    if (rank->device != device) continue;
    for (const CacheSpec& spec : rank->model->cache_specs()) specs.push_back(spec);
  }
  return specs;
}

void Workers::allocate(const CachePlan& plan, int64_t max_batched_tokens) {
  for (auto& rank : ranks_) rank->model->allocate(plan, max_batched_tokens);
}

void Workers::observe(Observer* observer) {
  for (auto& rank : ranks_) rank->model->observe(observer);
}

std::vector<int32_t> Workers::rope_lengths(const StepPlan& plan,
                                           std::span<const SequenceInput> inputs) const {
  if (!rope_depends_on_length()) return {};
  std::vector<int32_t> lengths(static_cast<size_t>(plan.rows()));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PlannedSequence& s = plan.sequences[i];
    for (int64_t r = 0; r < s.tokens; ++r) {
      lengths[static_cast<size_t>(s.first_row + r)] =
          static_cast<int32_t>(std::max(inputs[i].prompt_tokens, s.context + r + 1));
    }
  }
  return lengths;
}

bool Workers::start(const StepPlan& plan, std::span<const SequenceInput> inputs) {
  CHECK(inputs.size() == plan.sequences.size());
  ModelInstance& model = *ranks_.front()->model;
  if (ranks_.size() > 1 || !model.chooses() || plan.drafting) return false;
  const auto choices = device_choices(plan, inputs, model.choosable());
  if (!choices || drafted_sequences(plan) > 0) return false;
  model.start(plan, rope_lengths(plan, inputs), *choices);
  std::vector<bool>& sampled = started_.emplace_back();
  for (const PlannedSequence& s : plan.sequences) sampled.push_back(s.sample);
  return true;
}

std::vector<SequenceOutput> Workers::finish() {
  CHECK(!started_.empty(), "no step is under way");
  const std::vector<bool> sampled = std::move(started_.front());
  started_.pop_front();
  const std::span<const int32_t> ids = ranks_.front()->model->finish();
  std::vector<SequenceOutput> outputs(sampled.size());
  size_t row = 0;
  for (size_t i = 0; i < sampled.size(); ++i) {
    if (sampled[i]) outputs[i].tokens.push_back({.id = ids[row++], .top = {}});
  }
  return outputs;
}

std::vector<SequenceOutput> Workers::run(const StepPlan& plan, std::span<const SequenceInput> inputs) {
  CHECK(inputs.size() == plan.sequences.size() && started_.empty());
  const std::vector<int32_t> lengths = rope_lengths(plan, inputs);
  std::vector<SequenceOutput> outputs(inputs.size());
  on_all_ranks([&](Rank& rank) { run_rank(rank, plan, inputs, lengths, outputs); });
  if (drafted_sequences(plan) > 0) {
    // Which rows of drafts count is known only now, and every stage must know.
    std::vector<int32_t> kept;
    for (const SequenceOutput& output : outputs) kept.push_back(static_cast<int32_t>(output.tokens.size()));
    on_all_ranks([&](Rank& rank) {
      if (rank.model->has_states()) rank.model->keep_rows(*rank.pool, plan, kept);
    });
  }
  return outputs;
}

void Workers::run_rank(Rank& rank, const StepPlan& plan, std::span<const SequenceInput> inputs,
                       std::span<const int32_t> rope_lengths, std::vector<SequenceOutput>& outputs) {
  std::optional<std::vector<ops::TokenChoice>> choices;
  if (rank.samples() && rank.model->chooses())
    choices = device_choices(plan, inputs, rank.model->choosable());
  const Tensor result = rank.model->forward(*rank.pool, plan, rope_lengths,
                                            choices ? *choices : std::span<const ops::TokenChoice>{});
  if (!rank.mesh.last_stage()) return;
  std::vector<SampledSequence> sequences;
  if (rank.samples()) {
    for (const SequenceInput& input : inputs) sequences.emplace_back(input.sample);
    if (choices) {
      take_chosen(plan, rank.model->chosen_ids(), sequences, outputs);
    } else if (result) {
      sample(rank, plan, inputs, rank.model->to_host(result), sequences, outputs);
    }
  }
  if (plan.drafting && rank.model->drafts()) draft(rank, plan, inputs, sequences, outputs);
}

void Workers::sample(Rank& rank, const StepPlan& plan, std::span<const SequenceInput> inputs, Tensor logits,
                     std::vector<SampledSequence>& sequences, std::vector<SequenceOutput>& outputs) {
  std::vector<int64_t> first_row(inputs.size());  // in the logits
  for (size_t i = 0, row = 0; i < inputs.size(); ++i) {
    first_row[i] = static_cast<int64_t>(row);
    row += static_cast<size_t>(plan.sequences[i].logit_rows);
  }
  const auto vocab = static_cast<size_t>(logits.dim(1));
  rank.pool->parallel_for(static_cast<int64_t>(inputs.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PlannedSequence& s = plan.sequences[i];
      const SequenceInput& input = inputs[i];
      for (int64_t r = 0; r < s.logit_rows; ++r) {
        const std::span<float> row(logits.row<float>(first_row[i] + r), vocab);
        const int64_t position = s.context + s.tokens - s.logit_rows + r;
        if (position >= input.prompt_tokens) break;
        if (input.logits_sink != nullptr) (*input.logits_sink)(position, row);
        if (input.prompt_logprobs >= 0 && position + 1 < input.prompt_tokens) {
          outputs[i].prompt_logprobs.push_back(
              logprobs_of(row, input.tokens[position + 1], input.prompt_logprobs));
        }
      }
      if (!s.sample) continue;
      const Tensor rows = logits.rows(first_row[i] + s.logit_rows - 1 - s.drafts, 1 + s.drafts);
      outputs[i].tokens = verify(sequences[i], rows, planned_drafts(plan, s));
    }
  });
}

// Rank 0 alone knows what was sampled, and tells the others.
void Workers::draft(Rank& rank, const StepPlan& plan, std::span<const SequenceInput> inputs,
                    std::vector<SampledSequence>& sequences, std::vector<SequenceOutput>& outputs) {
  struct News {
    int32_t propose, count, tokens[kMaxDrafts + 1];
  };
  std::vector<News> news(inputs.size());
  if (rank.samples()) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      News& n = news[i];
      for (const SampledToken& token : outputs[i].tokens) {
        if (token.id >= 0) n.tokens[n.count++] = token.id;
      }
      const bool goes_on = n.count > 0 && !sequences[i].ends_with(n.tokens[n.count - 1]);
      n.propose = goes_on ? static_cast<int32_t>(plan.sequences[i].propose) : 0;
    }
  }
  Communicator& axis = *rank.mesh.attn;
  Stream stream(*rank.pool);
  broadcast(stream, axis, {&news.front().propose, news.size() * sizeof(News) / sizeof(int32_t)});
  std::vector<DraftInput> drafting(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const News& n = news[i];
    drafting[i] = {inputs[i].tokens, inputs[i].prompt_tokens, {n.tokens, n.tokens + n.count}, n.propose};
  }
  auto drafts = draft_tokens(*rank.model, *rank.pool, axis, plan, drafting, sequences);
  if (!rank.samples()) return;
  for (size_t i = 0; i < inputs.size(); ++i) outputs[i].drafts = std::move(drafts[i]);
}

int Workers::ranks() const { return static_cast<int>(ranks_.size()); }

int64_t Workers::weight_bytes() const {
  int64_t total = 0;
  for (const auto& rank : ranks_) total += rank->model->weight_bytes();
  return total;
}

int64_t Workers::weight_bytes_per_step() const {
  int64_t total = 0;
  for (const auto& rank : ranks_) total += rank->model->weight_bytes_per_step();
  return total;
}

int64_t Workers::cache_bytes() const {
  int64_t total = 0;
  for (const auto& rank : ranks_) total += rank->model->cache_bytes();
  return total;
}

std::string Workers::cache_types_text() const { return ranks_.front()->model->cache_types_text(); }

int64_t Workers::vocab() const { return ranks_.back()->model->tables().vocab; }

bool Workers::drafts() const { return ranks_.back()->model->drafts(); }

bool Workers::rope_depends_on_length() const {
  for (const auto& rank : ranks_) {
    if (rank->model->rope_depends_on_length()) return true;
  }
  return false;
}

}  // namespace atom
