#include "engine/device_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/search.h"
#include "base/text_util.h"
#include "engine/device_option.h"
#include "engine/loaded_model.h"

namespace atom {
namespace {

// Kernels, cuBLASLt and graphs; docs/decisions/2026-11-30-fp8-cache-and-device-memory.md has what was
// measured.
constexpr int64_t kCodeBytes = int64_t{256} << 20;

// What a plan takes where layers with these specs are. Slots of recurrent state lie beside the blocks that
// pay for them: on a GPU both are memory.
int64_t pool_bytes(std::span<const CacheSpec> specs, const CachePlan& plan) {
  int64_t bytes = 0;
  for (const CacheSpec& spec : specs) {
    bytes += plan.states.slots * spec.state_bytes;
    const int64_t window = spec.window >= plan.limits.max_model_len ? 0 : spec.window;
    for (const CacheGroup& group : plan.groups) {
      if (group.window == window) bytes += group.blocks * plan.limits.block_size * spec.bytes_per_token;
    }
  }
  return bytes;
}

// The largest cache of all ranks for whose parts the devices have room; the smallest if none is small enough.
CachePlan plan_within(const Workers& workers, const ModelOptions& o, const CacheLimits& limits,
                      std::span<const DevicePlan> devices) {
  const std::vector<CacheSpec> specs = workers.cache_specs();
  int64_t room = 0;  // on all devices
  for (const DevicePlan& d : devices) room += std::max<int64_t>(0, d.allowed - d.needed());
  const auto fits = [&](const CachePlan& plan) {
    return std::ranges::all_of(devices, [&](const DevicePlan& d) {
      return d.needed() + pool_bytes(workers.cache_specs_on(d.device), plan) <= d.allowed;
    });
  };
  CachePlan plan = plan_pools(specs, o, limits, room);
  if (o.kv_cache_bytes > 0 || fits(plan)) return plan;
  constexpr int64_t kUnit = 1 << 20;
  const int64_t units = largest_that_fits(
      room / kUnit, [&](int64_t n) { return fits(plan_pools(specs, o, limits, n * kUnit)); });
  return plan_pools(specs, o, limits, units * kUnit);
}

double utilization(const ModelOptions& o) { return o.gpu_memory_utilization.value_or(0.9); }

// Throws Error if the device has too little.
void require_room(const DevicePlan& plan, const ModelFiles& files, const ModelOptions& o,
                  const CacheLimits& limits) {
  if (plan.needed() <= plan.allowed) return;
  const std::string cache =
      o.kv_cache_bytes > 0 ? fmt::format("{} of cache (--kv-cache-bytes)", format_bytes(plan.cache_bytes))
                           : fmt::format("{} of cache for one sequence of {} tokens (--max-model-len)",
                                         format_bytes(plan.cache_bytes), plan.cache.limits.max_model_len);
  throw failed(
      "{} has {}: --gpu-memory-utilization {} of it, less {} in use already, leaves {}, and {} needs {}: {} "
      "of "
      "weights, {} for steps of {} tokens (--max-num-batched-tokens) and {} sequences (--max-num-seqs), {}, "
      "{} of "
      "code and graphs; lower one of these flags, use --kv-cache-dtype fp8, a higher "
      "--gpu-memory-utilization or "
      "a smaller storage format of the model, or free the device of other programs",
      plan.name, format_bytes(plan.total), utilization(o), format_bytes(plan.in_use),
      format_bytes(std::max<int64_t>(0, plan.allowed)), files.root.string(), format_bytes(plan.needed()),
      format_bytes(plan.memory.weights), format_bytes(plan.memory.step), limits.max_num_batched_tokens,
      limits.max_num_seqs, cache, format_bytes(plan.runtime));
}

}  // namespace

CachePlan plan_pools(std::span<const CacheSpec> specs, const ModelOptions& o, CacheLimits limits,
                     int64_t budget) {
  if (o.kv_cache_bytes > 0) {
    limits.budget_bytes = o.kv_cache_bytes;
    return plan_cache(specs, limits);
  }
  CacheLimits one = limits;
  one.max_num_seqs = 1;
  while (o.max_model_len == 0 && one.max_model_len > 256 && full_load_bytes(specs, one) > budget)
    one.max_model_len /= 2;
  limits.max_model_len = one.max_model_len;
  limits.budget_bytes =
      std::min(full_load_bytes(specs, limits), std::max(budget, full_load_bytes(specs, one)));
  return plan_cache(specs, limits);
}

std::vector<DevicePlan> plan_devices(const ModelFiles& files, const Checkpoint* checkpoint,
                                     const ModelOptions& o, const ComputeOptions& compute,
                                     const ParallelOptions& parallel) {
  const ConfigReader config(files.config);
  const CacheLimits limits = requested_limits(o, config, parallel.devices.front());
  std::vector<DevicePlan> plans;
  for (const Device device : parallel.devices) {
    if (std::ranges::any_of(plans, [&](const DevicePlan& p) { return p.device == device; })) continue;
    const gpu::DeviceInfo info = gpu::device_info(device);
    const int64_t in_use = info.total_bytes - info.free_bytes;
    const auto share = static_cast<int64_t>(utilization(o) * static_cast<double>(info.total_bytes));
    plans.push_back({.device = device,
                     .name = fmt::format("{}, {}", to_string(device), info.name),
                     .total = info.total_bytes,
                     .in_use = in_use,
                     .allowed = share - in_use,
                     .runtime = kCodeBytes});
  }
  Workers workers(config, parallel, compute);
  workers.place(checkpoint, read_dtype(config).value_or(DType::bf16));
  workers.prepare_step(step_limits(limits));
  for (DevicePlan& plan : plans) plan.memory = workers.device_memory(plan.device);
  const CachePlan cache = plan_within(workers, o, limits, plans);
  for (DevicePlan& plan : plans) {
    plan.cache = cache;
    plan.cache_bytes = pool_bytes(workers.cache_specs_on(plan.device), cache);
    require_room(plan, files, o, limits);
  }
  return plans;
}

std::string to_string(const DevicePlan& plan) {
  const int64_t together = plan.in_use + plan.needed();
  std::string text = fmt::format("{}: a run takes\n", plan.name);
  const auto line = [&](int64_t bytes, const std::string& what) {
    text += fmt::format("  {:>12}  {}\n", format_bytes(bytes), what);
  };
  line(plan.memory.weights, "weights");
  line(plan.memory.step,
       fmt::format("steps of {} tokens or {} sequences", plan.cache.limits.max_num_batched_tokens,
                   plan.cache.limits.max_num_seqs));
  line(plan.cache_bytes, fmt::format("cache; contexts of up to {} tokens", plan.cache.limits.max_model_len));
  line(plan.runtime, "code and graphs, about");
  line(plan.in_use, "in use before, by other programs and the driver");
  line(together, fmt::format("together, {:.1f} % of {}",
                             100 * static_cast<double>(together) / static_cast<double>(plan.total),
                             format_bytes(plan.total)));
  return text;
}

}  // namespace atom
