// atom plan: the memory bill per rank before anything is loaded, and what fits in a device.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text_util.h"
#include "cli/command.h"
#include "engine/device_choice.h"
#include "engine/device_option.h"
#include "engine/device_plan.h"
#include "engine/drafter_choice.h"
#include "engine/memory_plan.h"
#include "engine/quantise_option.h"
#include "runtime/anatomy.h"

namespace atom::cli {
namespace {

struct Flags {
  ModelOptions model;
  int64_t device_memory = 0;
  std::string output = "text";
};

const char* kind_name(CacheKind kind) {
  static constexpr const char* kNames[] = {"every token", "window", "state"};
  return kNames[static_cast<int>(kind)];
}

// As the engine will decide; from a config alone as it would if the files held what the config announces.
int64_t planned_drafts(const ModelFiles& files, const Checkpoint* checkpoint, std::optional<int> asked) {
  if (checkpoint != nullptr || asked) return choose_drafter(files, checkpoint, asked).drafts;
  return announced_draft_layers(files.config) > 0 && has_drafter(files.config) ? kAdaptiveDrafts : 0;
}

MemoryRequest request_of(const Flags& f, const ConfigReader& config) {
  const ModelOptions& o = f.model;
  MemoryRequest request;
  request.parallel = {.tp = o.tp, .pp = o.pp, .ep = o.ep, .stage_partition = o.pp_partition};
  request.limits = requested_limits(o, config);
  request.cache = compute_options(o, config).cache;
  request.device_memory = f.device_memory;
  request.longest_context = o.max_model_len == 0;
  return request;
}

Json to_json(const MemoryPlan& plan, const MemoryRequest& request) {
  Json ranks = Json::array(), fits = Json::array();
  for (const RankBill& bill : plan.ranks) {
    Json cache = Json::array();
    int64_t state = 0;
    for (const CacheLine& line : bill.cache) {
      const bool is_state = line.kind == CacheKind::state;
      if (is_state) state += line.bytes();
      cache.push_back({{"keeps", kind_name(line.kind)},
                       {"layers", line.layers},
                       {"window", line.window > 0 ? Json(line.window) : Json()},
                       {is_state ? "bytes_per_sequence" : "bytes_per_token", line.bytes_per_token},
                       {is_state ? "sequences" : "tokens", line.tokens},
                       {"bytes", line.bytes()}});
    }
    ranks.push_back({{"stage", bill.stage},
                     {"rank", bill.rank},
                     {"weight_bytes", bill.weights},
                     {"drafter_weight_bytes", bill.drafter_weights},
                     {"kv_bytes", bill.cache_bytes() - state},
                     {"state_bytes", state},
                     {"workspace_bytes", bill.workspace},
                     {"total_bytes", bill.total()},
                     {"cache", std::move(cache)}});
  }
  for (const Fit& fit : plan.fits) fits.push_back({{"context", fit.context}, {"sequences", fit.sequences}});
  const CacheLimits& limits = plan.limits;
  return {{"device_memory_bytes", request.device_memory > 0 ? Json(request.device_memory) : Json()},
          {"tp", request.parallel.tp},
          {"pp", request.parallel.pp},
          {"ep", request.parallel.ep},
          {"kv_cache_dtype", dtype_name(request.cache.dtype)},
          {"block_size", limits.block_size},
          {"max_model_len", limits.max_model_len},
          {"max_num_seqs", limits.max_num_seqs},
          {"max_num_batched_tokens", limits.max_num_batched_tokens},
          {"sequences", plan.sequences},
          {"speculative_tokens", request.drafts},
          {"weights", plan.weights_estimated ? "from the config" : "from the headers"},
          {"ranks", std::move(ranks)},
          {"cache_bytes_without_windows", plan.without_windows},
          {"fits", std::move(fits)}};
}

bool same_bill(const RankBill& a, const RankBill& b) {
  if (a.weights != b.weights || a.drafter_weights != b.drafter_weights || a.workspace != b.workspace ||
      a.cache.size() != b.cache.size())
    return false;
  for (size_t i = 0; i < a.cache.size(); ++i) {
    if (a.cache[i].layers != b.cache[i].layers || a.cache[i].bytes() != b.cache[i].bytes()) return false;
  }
  return true;
}

std::string sequences_text(int64_t count) {
  return fmt::format("{} sequence{}", count, count == 1 ? "" : "s");
}

std::string cache_line(const CacheLine& line, int64_t sequences) {
  if (line.kind == CacheKind::state) {
    return fmt::format("{} layers x {} bytes of state x {}", line.layers, line.bytes_per_token,
                       sequences_text(line.tokens));
  }
  const std::string kept = line.window > 0 ? fmt::format(", window {}", line.window) : "";
  return fmt::format("{} layers x {} bytes x {} tokens of {}{}", line.layers, line.bytes_per_token,
                     line.tokens, sequences_text(sequences), kept);
}

std::string to_text(const MemoryPlan& plan, const MemoryRequest& request, const std::string& name) {
  const ParallelOptions& p = request.parallel;
  std::string out = fmt::format(
      "{}: {} (tp {}, pp {}, ep {}), cache in {}, blocks of {} tokens, steps of {} tokens\n", name,
      plan.ranks.size() == 1 ? "one rank" : fmt::format("{} ranks", plan.ranks.size()), p.tp, p.pp, p.ep,
      plan.cache_types, plan.limits.block_size, plan.limits.max_num_batched_tokens);
  out += fmt::format("{} of {} tokens at once", sequences_text(plan.sequences), plan.limits.max_model_len);
  if (plan.sequences < plan.limits.max_num_seqs)
    out += fmt::format(" (of {} asked for: more wait for memory)", plan.limits.max_num_seqs);
  out += "\n";
  int64_t cache = 0;
  for (size_t i = 0; i < plan.ranks.size();) {
    const RankBill& bill = plan.ranks[i];
    size_t end = i;
    while (end < plan.ranks.size() && same_bill(bill, plan.ranks[end]) &&
           plan.ranks[end].stage == bill.stage) {
      cache += plan.ranks[end].cache_bytes();
      ++end;
    }
    if (plan.ranks.size() > 1) {
      out += fmt::format("\nstage {}, rank {}", bill.stage, bill.rank);
      if (end - i > 1) out += fmt::format(" to {}, each", plan.ranks[end - 1].rank);
    }
    out += fmt::format("\n  {:>12}  weights{}\n", format_bytes(bill.weights),
                       plan.weights_estimated ? ", reckoned from the config" : "");
    if (bill.drafter_weights > 0) {
      out += fmt::format("  {:>12}  of these: the layer that drafts up to {} tokens ahead\n",
                         format_bytes(bill.drafter_weights), request.drafts);
    }
    for (const CacheLine& line : bill.cache)
      out += fmt::format("  {:>12}  {}\n", format_bytes(line.bytes()), cache_line(line, plan.sequences));
    out += fmt::format("  {:>12}  workspace of a step, at most\n", format_bytes(bill.workspace));
    out += fmt::format("  {:>12}  together", format_bytes(bill.total()));
    if (request.device_memory > 0) out += fmt::format(", of {}", format_bytes(request.device_memory));
    out += "\n";
    i = end;
  }
  if (plan.without_windows > cache) {
    out += fmt::format("\nwindows save {}: the cache would take {} if every layer kept every token\n",
                       format_bytes(plan.without_windows - cache), format_bytes(plan.without_windows));
  }
  if (plan.fits.empty()) return out;
  out += fmt::format("\nwhat fits in {} per rank\n  {:>12}  {:>12}\n", format_bytes(request.device_memory),
                     "context", "sequences");
  for (const Fit& fit : plan.fits) out += fmt::format("  {:>12}  {:>12}\n", fit.context, fit.sequences);
  return out;
}

Json to_json(const DevicePlan& plan) {
  return {{"device", plan.name},
          {"device_bytes", plan.total},
          {"in_use_bytes", plan.in_use},
          {"weight_bytes", plan.memory.weights},
          {"step_bytes", plan.memory.step},
          {"cache_bytes", plan.cache_bytes},
          {"runtime_bytes", plan.runtime},
          {"total_bytes", plan.in_use + plan.needed()},
          {"max_model_len", plan.cache.limits.max_model_len},
          {"max_num_seqs", plan.cache.limits.max_num_seqs},
          {"max_num_batched_tokens", plan.cache.limits.max_num_batched_tokens}};
}

// What a run on GPUs of this machine takes.
void run_on(const std::vector<Device>& devices, const Flags& f, const ModelFiles& files,
            const Checkpoint* checkpoint) {
  const Device device = devices.front();
  if (f.device_memory > 0) {
    throw invalid("--device-memory: {} is in this machine and has what it has; use --gpu-memory-utilization",
                  to_string(device));
  }
  const std::string problem = gpu_problem(files, checkpoint, device);
  if (!problem.empty()) throw invalid("--device {}: {}; use --device cpu", f.model.device, problem);
  const ConfigReader config(files.config);
  ParallelOptions parallel = parallel_options(f.model);
  parallel.drafter = choose_drafter(files, checkpoint, f.model.num_speculative_tokens.value_or(0)).drafter;
  parallel.devices = devices;
  const std::vector<DevicePlan> plans =
      plan_devices(files, checkpoint, f.model, compute_options(f.model, config), parallel);
  if (f.output == "json") {
    Json all = Json::array();
    for (const DevicePlan& plan : plans) all.push_back(to_json(plan));
    print_line((plans.size() > 1 ? all : all.front()).dump(1));
  } else {
    std::string text;
    for (const DevicePlan& plan : plans) text += to_string(plan);
    print_line(text + to_string(plans.front().cache));
  }
}

void run(const Flags& f) {
  ModelFiles files = open_model_files(locate_model(f.model.model));
  std::optional<Checkpoint> opened = open_checkpoint_if(files);
  Checkpoint* const checkpoint = opened ? &*opened : nullptr;
  if (!f.model.quantize.empty()) declare_quantised(files, checkpoint, f.model.quantize);
  const ConfigReader config(files.config);
  const int64_t ranks =
      std::clamp<int64_t>(int64_t{f.model.tp} * f.model.pp, 1, 256);  // others are the workers' to refuse
  const std::vector<Device> devices = parse_devices(f.model.device, static_cast<int>(ranks));
  if (devices.front().kind != Device::cpu) return run_on(devices, f, files, checkpoint);
  if (f.model.kv_cache_bytes > 0 || f.model.gpu_memory_utilization) {
    throw invalid("{}: goes with --device cuda:i or hip:i",
                  f.model.kv_cache_bytes > 0 ? "--kv-cache-bytes" : "--gpu-memory-utilization");
  }
  MemoryRequest request = request_of(f, config);
  request.drafts = planned_drafts(files, checkpoint, f.model.num_speculative_tokens);
  const MemoryPlan plan = plan_memory(files, checkpoint, request);
  if (f.output == "json") {
    print_line(to_json(plan, request).dump(1));
  } else {
    print_line(to_text(plan, request, files.root.filename().string()));
  }
}

}  // namespace

void add_plan(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  f->model.device = "cpu";
  CLI::App* verb = app.add_subcommand("plan", "the memory bill per rank, before anything is loaded");
  add_model_flag(verb, f->model.model);
  verb->add_option("--tp", f->model.tp, "tensor-parallel ranks");
  verb->add_option("--pp", f->model.pp, "pipeline stages");
  verb->add_option("--ep", f->model.ep,
                   "groups of the tensor-parallel ranks that experts are dealt to whole");
  verb->add_option("--pp-partition", f->model.pp_partition, "layers of each stage, for example 18,20,20,20")
      ->delimiter(',');
  verb->add_option("--device-memory", f->device_memory,
                   "memory of one rank, for example 141GiB; default: no limit")
      ->transform(CLI::AsSizeValue(false))
      ->check(at_least(1));
  CLI::Option* device =
      verb->add_option("--device", f->model.device,
                       "cuda:i, cuda:i,j or hip:i: what a run on these GPUs of this machine takes, to "
                       "the allocation; default: any device");
  verb->add_option("--dtype", f->model.dtype, "auto (the model's), float32, bfloat16 or float16");
  verb->add_option("--gpu-memory-utilization", f->model.gpu_memory_utilization,
                   "with --device: share of the GPU's memory to use")
      ->check(CLI::Range(0.05, 1.0))
      ->needs(device);
  verb->add_option("--kv-cache-bytes", f->model.kv_cache_bytes,
                   "with --device: memory for keys and values, for example 2GiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(at_least(1))
      ->needs(device);
  verb->add_option("--max-model-len", f->model.max_model_len,
                   "longest sequence in tokens; default: the model's, or what fits")
      ->check(at_least(1));
  verb->add_option("--max-num-seqs", f->model.max_num_seqs, "sequences that run at once")->check(at_least(1));
  verb->add_option("--max-num-batched-tokens", f->model.max_num_batched_tokens, "tokens of one step")
      ->check(at_least(1));
  verb->add_option("--block-size", f->model.block_size, "tokens of one cache block")
      ->check(CLI::Range(1, 4096));
  verb->add_option("--kv-cache-dtype", f->model.kv_cache_dtype,
                   "auto (as --dtype), float32, bfloat16, float16 or fp8 (E4M3; latents stay as with auto)");
  add_quantize_flag(verb, "--quantize", f->model);
  add_speculation_flag(verb, f->model);
  verb->add_option("--output", f->output, "text or json")->check(CLI::IsMember({"text", "json"}));
  verb->callback([f] { run(*f); });
}

}  // namespace atom::cli
