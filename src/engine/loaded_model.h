// From a model name and options to a running engine: the one place where files, weights, cache and engine
// meet.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/device_plan.h"
#include "engine/drafter_choice.h"
#include "engine/engine.h"
#include "engine/text_model.h"
#include "runtime/worker.h"

namespace atom {

// The common flags, as typed. Zero and "auto" mean: choose.
struct ModelOptions {
  std::string model;  // folder, .gguf file or Hugging Face id; empty: the demo model if it has been fetched
  std::string device = "auto";  // auto: the first GPU if it can run all of this; cpu, cuda, cuda:1, hip, ...
  std::string dtype = "auto";   // float32: exact; bfloat16 and float16: products may round activations
  std::string kv_cache_dtype = "auto";  // as dtype; float32, bfloat16, float16, fp8 (E4M3)
  std::string load_format = "auto";     // safetensors, gguf, dummy
  std::string quantize;  // what plain weights are turned into at load: fp8, mxfp4; empty: nothing
  int tp = 1, pp = 1, ep = 1;
  std::vector<int> pp_partition;
  int threads = 0;
  int loader_threads = 16;
  bool mmap = true;
  int64_t max_model_len = 0;
  int64_t max_num_seqs = 0;
  int64_t max_num_batched_tokens = 0;
  int64_t block_size = 0;
  int64_t kv_cache_bytes = 0;
  // Of the device's memory, for weights, a step and the cache together; GPUs only.
  std::optional<double> gpu_memory_utilization;  // default: 0.9
  bool prefix_caching = true;
  // Tokens drafted ahead of each sequence, 0 to kMaxDrafts. Absent: as many as pay, if the checkpoint has a
  // drafter and the model runs on the CPU.
  std::optional<int> num_speculative_tokens;

  int thread_count() const;  // `threads`, or one per core
};

// Bytes done and in all, of a named phase ("download", "load").
using PhaseProgress = std::function<void(const char* phase, int64_t done, int64_t total)>;

// The folder or file that `model` means; empty means the fetched demo model. May download.
std::filesystem::path locate_model(const std::string& model, const PhaseProgress& progress = {});

// Where `make demo` puts models: $ATOM_HOME or ~/.cache/atom, then models/.
std::filesystem::path demo_model_folder();

// The headers of the model's weights; empty for a folder that holds no weights at all, of which only the
// config can be told. Throws Error for a damaged or incomplete set.
std::optional<Checkpoint> open_checkpoint_if(const ModelFiles& files);

// What the options ask of the cache, with the engine's defaults on `device` and the context that the config
// is made for; the budget is left 0.
CacheLimits requested_limits(const ModelOptions& options, const ConfigReader& config, Device device = {});

// The largest step that such a cache is for.
StepLimits step_limits(const CacheLimits& limits);

// What the flags say of how to compute and of ranks; the device and the drafter are left out.
ComputeOptions compute_options(const ModelOptions& options, const ConfigReader& config);
ParallelOptions parallel_options(const ModelOptions& options);

// "float32", "bfloat16" or "float16"; throws Error naming the flag for anything else.
DType dtype_option(const std::string& flag, const std::string& value);
// The value of --kv-cache-dtype; `automatic` is what "auto" means.
DType cache_dtype_option(const std::string& value, DType automatic);

class LoadedModel {
 public:
  // Everything up to a ready engine. Throws Error.
  explicit LoadedModel(const ModelOptions& options, const PhaseProgress& progress = {});

  Engine& engine() { return *engine_; }
  Workers& workers() { return *workers_; }
  const TextModel& text() const { return text_; }
  const ModelFiles& files() const { return files_; }
  const CachePlan& cache_plan() const { return cache_plan_; }
  const std::string& dtype() const { return dtype_; }
  DType cache_dtype() const { return cache_dtype_; }
  // On a GPU: what this was reckoned to take.
  const std::vector<DevicePlan>& device_plans() const { return device_plans_; }
  Device device() const { return device_; }
  // Sampling parameters that the checkpoint's generation_config.json suggests; greedy if it suggests none.
  SamplingParams default_sampling() const;

 private:
  ModelFiles files_;
  TextModel text_;
  Device device_;
  std::string dtype_;                     // float32, bfloat16 or float16
  std::optional<Checkpoint> checkpoint_;  // outlives the workers, whose weights may lie in its maps
  std::unique_ptr<Workers> workers_;
  DType cache_dtype_ = DType::f32;
  std::vector<DevicePlan> device_plans_;
  CachePlan cache_plan_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace atom
