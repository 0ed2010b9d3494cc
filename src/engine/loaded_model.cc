#include "engine/loaded_model.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text_util.h"
#include "checkpoint/hub.h"
#include "checkpoint/rope_config.h"
#include "engine/device_choice.h"
#include "engine/device_option.h"
#include "engine/device_plan.h"
#include "engine/quantise_option.h"
#include "models/registry.h"
#include "runtime/account.h"

namespace atom {
namespace {

constexpr int64_t kDefaultBlockSize = 32;       // tokens
constexpr int64_t kDefaultBatchedTokens = 512;  // enough rows for the matrix units
constexpr int64_t kDefaultSequences = 64;
constexpr int64_t kDefaultGpuBatchedTokens = 2048;
constexpr int64_t kDefaultGpuSequences = 256;
constexpr int64_t kFallbackContext = 4096;  // when the config does not say

// MemAvailable, or the lowest limit of a control group that holds this process.
int64_t available_memory() {
  int64_t available = int64_t{1} << 40;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) available = kib * 1024;
    meminfo.ignore(256, '\n');
  }
  // The groups of this process (lines such as "0::/user.slice/x" or "4:memory:/x") and those around them.
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const bool unified = line.starts_with("0::");
    const size_t memory = line.find(":memory:");
    if (!unified && memory == std::string::npos) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char* file = unified ? "/memory.max" : "/memory.limit_in_bytes";
    for (std::string group = line.substr(unified ? 3 : memory + 8);; group.resize(group.rfind('/'))) {
      std::ifstream limit(root + group + file);
      int64_t bytes = 0;
      if (limit >> bytes && bytes > 0) available = std::min(available, bytes);
      if (group.rfind('/') == std::string::npos) break;
    }
  }
  return available;
}

const char* dtype_flag(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
}

// How long the parts of loading took.
class Phases {
 public:
  void end(const char* phase) {
    const int64_t now = now_us();
    text_ += fmt::format("{}{} {:.2f} s", text_.empty() ? "" : ", ", phase,
                         static_cast<double>(now - std::exchange(since_, now)) * 1e-6);
  }
  const std::string& text() const { return text_; }

 private:
  int64_t since_ = now_us();
  std::string text_;
};

// The longest sequence the model is made for.
int64_t config_context(const ConfigReader& config) {
  int64_t context = config.integer_or("max_position_embeddings", kFallbackContext, 1);
  // A length-dependent rope is meant to be stretched by its factor. Others are the model's to read, which
  // knows its defaults.
  const bool dynamic =
      std::ranges::any_of(std::array{"rope_scaling", "rope_parameters"}, [&](const char* key) {
        const Json* rope = config.find(key);
        return rope != nullptr && rope->is_object() &&
               (rope->value("rope_type", Json()) == "dynamic" || rope->value("type", Json()) == "dynamic");
      });
  if (!dynamic) return context;
  const std::optional<int64_t> latent = config.integer_if("qk_rope_head_dim", 2);
  const RopeConfig rope = parse_rope(config, latent ? *latent : read_head_dim(config), {.theta = 10000.0});
  if (rope.type == RopeType::dynamic)
    context = static_cast<int64_t>(static_cast<double>(context) * rope.factor);
  return context;
}

}  // namespace

DType dtype_option(const std::string& flag, const std::string& value) {
  if (value == "float32") return DType::f32;
  if (value == "bfloat16") return DType::bf16;
  if (value == "float16") return DType::f16;
  throw invalid("{} {}: not supported; use auto, float32, bfloat16 or float16", flag, value);
}

DType cache_dtype_option(const std::string& value, DType automatic) {
  if (value == "auto") return automatic;
  if (value == "fp8") return DType::f8e4m3;
  if (value == "float32" || value == "bfloat16" || value == "float16")
    return dtype_option("--kv-cache-dtype", value);
  throw invalid("--kv-cache-dtype {}: not supported; use auto, float32, bfloat16, float16 or fp8", value);
}

std::optional<Checkpoint> open_checkpoint_if(const ModelFiles& files) {
  bool weights = files.is_gguf;
  if (!files.is_gguf) {
    for (const auto& entry : std::filesystem::directory_iterator(files.root)) {
      const std::string name = entry.path().filename().string();
      weights |= name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    }
  }
  return weights ? std::optional(Checkpoint::open(files.root)) : std::nullopt;
}

CacheLimits requested_limits(const ModelOptions& o, const ConfigReader& config, Device device) {
  const bool gpu = device.kind != Device::cpu;
  CacheLimits limits;
  limits.block_size = o.block_size > 0 ? o.block_size : kDefaultBlockSize;
  limits.max_num_seqs = o.max_num_seqs > 0 ? o.max_num_seqs : gpu ? kDefaultGpuSequences : kDefaultSequences;
  limits.max_num_batched_tokens = o.max_num_batched_tokens > 0 ? o.max_num_batched_tokens
                                  : gpu                        ? kDefaultGpuBatchedTokens
                                                               : kDefaultBatchedTokens;
  limits.max_model_len = o.max_model_len > 0 ? o.max_model_len : config_context(config);
  return limits;
}

StepLimits step_limits(const CacheLimits& limits) {
  return {.max_rows = limits.max_num_batched_tokens,
          .max_sequences = limits.max_num_seqs,
          .max_model_len = limits.max_model_len,
          .block_size = limits.block_size};
}

ComputeOptions compute_options(const ModelOptions& o, const ConfigReader& config) {
  const DType dtype = o.dtype == "auto"
                          ? dtype_option("--dtype", dtype_flag(read_dtype(config).value_or(DType::bf16)))
                          : dtype_option("--dtype", o.dtype);
  return {.precision = dtype == DType::f32 ? ops::Precision::exact : ops::Precision::fast,
          .cache = {cache_dtype_option(o.kv_cache_dtype, dtype), dtype}};
}

ParallelOptions parallel_options(const ModelOptions& o) {
  return {.tp = o.tp, .pp = o.pp, .ep = o.ep, .threads = o.thread_count(), .stage_partition = o.pp_partition};
}

int ModelOptions::thread_count() const {
  return threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::filesystem::path demo_model_folder() {
  const char* home = std::getenv("ATOM_HOME");
  if (home != nullptr && *home != '\0') return std::filesystem::path(home) / "models";
  const char* user = std::getenv("HOME");
  return std::filesystem::path(user == nullptr ? "." : user) / ".cache" / "atom" / "models";
}

std::filesystem::path locate_model(const std::string& model, const PhaseProgress& progress) {
  if (!model.empty()) {
    HubOptions hub = hub_options_from_environment();
    if (progress) hub.progress = [&](const HubProgress& p) { progress("download", p.bytes, p.total); };
    return resolve_model(model, hub);
  }
  std::error_code ignored;
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(demo_model_folder(), ignored)) {
    if (entry.path().extension() == ".gguf") found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  if (found.empty()) {
    throw invalid(
        "--model is missing, and no demo model is in {}: name a model folder, or run `make demo` once",
        demo_model_folder().string());
  }
  return found.front();
}

LoadedModel::LoadedModel(const ModelOptions& o, const PhaseProgress& progress)
    : files_(open_model_files(locate_model(o.model, progress))), text_(files_) {
  const auto report = [&](const char* phase) {
    return progress ? [&progress, phase](int64_t done, int64_t total) { progress(phase, done, total); }
                    : JobProgress::Report();
  };
  const int64_t ranks =
      std::clamp<int64_t>(int64_t{o.tp} * o.pp, 1, 256);  // others are the workers' to refuse
  std::vector<Device> devices = parse_devices(o.device, static_cast<int>(ranks));
  const ConfigReader config(files_.config);
  const bool dummy = o.load_format == "dummy";
  Phases phases;
  if (!dummy && o.load_format != "auto" && o.load_format != (files_.is_gguf ? "gguf" : "safetensors")) {
    throw invalid("--load-format {}: {} is {}; use auto, {} or dummy", o.load_format, files_.root.string(),
                  files_.is_gguf ? "a gguf file" : "a folder of safetensors",
                  files_.is_gguf ? "gguf" : "safetensors");
  }

  const DType stored = read_dtype(config).value_or(DType::bf16);
  dtype_ = dtype_flag(o.dtype == "auto" ? stored : dtype_option("--dtype", o.dtype));
  ComputeOptions compute = compute_options(o, config);
  cache_dtype_ = compute.cache.dtype;
  ParallelOptions parallel = parallel_options(o);

  if (!dummy) {
    checkpoint_.emplace(Checkpoint::open(files_.root));
    require_complete(account(ModelDeclaration(files_).tables(), *checkpoint_), files_.root.string());
  }
  Checkpoint* const checkpoint = checkpoint_ ? &*checkpoint_ : nullptr;
  std::optional<Quantisation> quantisation;
  if (!o.quantize.empty()) quantisation = declare_quantised(files_, checkpoint, o.quantize);
  device_ = choose_device(o, files_, checkpoint, devices.front());
  const bool on_gpu = device_.kind != Device::cpu;
  if (on_gpu) parallel.devices = std::move(devices);
  if (!on_gpu && o.gpu_memory_utilization) {
    throw invalid(
        "--gpu-memory-utilization: the model runs on the CPU, where --kv-cache-bytes is the memory for keys "
        "and "
        "values");
  }
  phases.end(on_gpu ? "headers and device" : "headers");
  const DrafterChoice speculation =
      choose_drafter(files_, checkpoint,
                     on_gpu ? std::optional(o.num_speculative_tokens.value_or(0)) : o.num_speculative_tokens);
  parallel.drafter = speculation.drafter;
  workers_ = std::make_unique<Workers>(config, parallel, compute);
  const CacheLimits limits = requested_limits(o, config, device_);
  if (on_gpu) {
    device_plans_ = plan_devices(files_, checkpoint, o, compute, parallel);
    cache_plan_ = device_plans_.front().cache;
    phases.end("plan");
  } else {
    cache_plan_ = plan_pools(workers_->cache_specs(), o, limits, available_memory() / 2);
  }
  if (quantisation && checkpoint != nullptr) {
    compute_quantised(*quantisation, *checkpoint, parallel.threads, report("quantise"));
    phases.end("quantising");
  }
  const LoadOptions load{
      .mmap = o.mmap, .threads = dummy ? parallel.threads : o.loader_threads, .progress = report("load")};
  if (dummy) {
    workers_->load_dummy(stored, load);
  } else {
    workers_->load(*checkpoint_, load);
  }
  phases.end("weights");
  if (log_enabled(LogLevel::debug)) {
    for (const DevicePlan& plan : device_plans_) {
      log_debug("with weights {} of {} are free", format_bytes(gpu::device_info(plan.device).free_bytes),
                to_string(plan.device));
    }
  }
  StepLimits step = step_limits(limits);
  step.choosable = text_.tokenizer_if() ? text_.tokenizer_if()->vocab_size() : 0;
  step.drafts = speculation.drafts;
  workers_->prepare_step(step);
  workers_->allocate(cache_plan_, cache_plan_.limits.max_num_batched_tokens);
  phases.end(on_gpu ? "cache and graphs" : "cache");
  log_info("{}: {} of weights, {} ranks, {}, cache in {}\n{}", files_.root.string(),
           format_bytes(workers_->weight_bytes()), workers_->ranks(), dtype_, workers_->cache_types_text(),
           to_string(cache_plan_));
  log_info("loaded in {}", phases.text());
  for (const DevicePlan& plan : device_plans_) {
    const gpu::DeviceInfo info = gpu::device_info(plan.device);
    log_info("{}planned {}, in use now {}", to_string(plan), format_bytes(plan.in_use + plan.needed()),
             format_bytes(info.total_bytes - info.free_bytes));
  }
  if (speculation.drafts > 0) {
    log_info("speculation: {} {} tokens drafted ahead", speculation.adaptive ? "up to" : "always",
             speculation.drafts);
  }

  EngineOptions engine;
  engine.cache = cache_plan_;
  engine.max_num_batched_tokens = cache_plan_.limits.max_num_batched_tokens;
  engine.prefix_caching = o.prefix_caching;
  engine.cache_salt = files_.root.string() + " " + dtype_ + " " + dtype_name(cache_dtype_);
  engine.eos_ids = text_.eos_ids();
  engine.drafts = speculation.drafts;
  engine.adaptive_drafts = speculation.adaptive;
  engine_ = std::make_unique<Engine>(*workers_, text_.tokenizer_if(), std::move(engine));
}

SamplingParams LoadedModel::default_sampling() const {
  SamplingParams p;
  p.temperature = 0;
  if (!files_.generation_config.is_object()) return p;
  const ConfigReader g(files_.generation_config, "generation_config.json");
  p.repetition_penalty = static_cast<float>(g.number_or("repetition_penalty", 1));
  if (!g.boolean_or("do_sample", false)) return p;
  p.temperature = static_cast<float>(g.number_or("temperature", 1));
  p.top_p = static_cast<float>(g.number_or("top_p", 1));
  p.top_k = static_cast<int32_t>(g.integer_or("top_k", 0, 0, INT32_MAX));
  p.min_p = static_cast<float>(g.number_or("min_p", 0));
  return p;
}

}  // namespace atom
