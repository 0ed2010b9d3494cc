// What a model takes of the memory of its GPUs, reckoned before any of its weights is read.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "runtime/worker.h"

namespace atom {

struct ModelOptions;

struct DevicePlan {
  Device device;
  std::string name;         // "cuda:0, NVIDIA H200"
  int64_t total = 0;        // bytes of the device
  int64_t in_use = 0;       // by other programs, and by the driver for this one
  int64_t allowed = 0;      // what --gpu-memory-utilization leaves for all below
  DeviceMemory memory;      // weights and steps, of all ranks there
  int64_t runtime = 0;      // the kernels' code, the vendor's library and graphs: an estimate
  CachePlan cache;          // of all ranks
  int64_t cache_bytes = 0;  // of blocks and states that lie there
  int64_t needed() const { return memory.weights + memory.step + runtime + cache_bytes; }
};

// One for each of `parallel.devices`, with the same cache. Declares the model on the devices, gives its
// weights places where there is no memory and walks its largest steps there. `checkpoint` is null for dummy
// weights. The cache gets what is left, as in plan_pools(), as far as every device has room for its ranks'
// part. Throws Error (failed) if a device has not enough for one sequence: the message has the figures and
// the flags.
std::vector<DevicePlan> plan_devices(const ModelFiles& files, const Checkpoint* checkpoint,
                                     const ModelOptions& options, const ComputeOptions& compute,
                                     const ParallelOptions& parallel);

// Divides the cache's memory: --kv-cache-bytes, or as much of `budget` as full load takes. Without
// --max-model-len the context is halved until one sequence fits; otherwise one sequence gets what it needs,
// even beyond the budget.
CachePlan plan_pools(std::span<const CacheSpec> specs, const ModelOptions& options, CacheLimits limits,
                     int64_t budget);

std::string to_string(const DevicePlan& plan);

}  // namespace atom
