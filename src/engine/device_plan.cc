#include "engine/device_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/search.h"
#include "base/text_util.h"
#include "engine/device_option.h"
#include "engine/loaded_model.h"

namespace atom {
namespace {

// Kernels, cuBLASLt and graphs; docs/decisions/2026-11-30-fp8-cache-and-device-memory.md has what was measured.
constexpr int64_t kCodeBytes = int64_t{256} << 20;

// Slots of recurrent state lie beside the blocks that pay for them: on a GPU both are memory.
int64_t state_bytes(std::span<const CacheSpec> specs, const CachePlan& plan) {
  int64_t bytes = 0;
  for (const CacheSpec& spec : specs) bytes += spec.state_bytes;
  return plan.states.slots * bytes;
}

CachePlan plan_within(std::span<const CacheSpec> specs, const ModelOptions& o, const CacheLimits& limits,
                      int64_t budget) {
  CachePlan plan = plan_pools(specs, o, limits, budget);
  if (plan.states.slots == 0 || o.kv_cache_bytes > 0) return plan;
  constexpr int64_t kUnit = 1 << 20;
  const int64_t units = largest_that_fits(budget / kUnit, [&](int64_t n) {
    const CachePlan smaller = plan_pools(specs, o, limits, n * kUnit);
    return smaller.used_bytes + state_bytes(specs, smaller) <= budget;
  });
  return plan_pools(specs, o, limits, units * kUnit);
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

DevicePlan plan_device(const ModelFiles& files, const Checkpoint* checkpoint, const ModelOptions& o,
                       const ComputeOptions& compute, const ParallelOptions& parallel) {
  const gpu::DeviceInfo info = gpu::device_info(compute.device);
  const ConfigReader config(files.config);
  const CacheLimits limits = requested_limits(o, config, compute.device);
  Workers workers(config, parallel, compute);
  workers.place(checkpoint, read_dtype(config).value_or(DType::bf16));
  workers.prepare_step(step_limits(limits));

  DevicePlan plan{.device = fmt::format("{}, {}", to_string(compute.device), info.name),
                  .total = info.total_bytes,
                  .in_use = info.total_bytes - info.free_bytes,
                  .memory = workers.device_memory(),
                  .runtime = kCodeBytes};
  plan.allowed =
      static_cast<int64_t>(o.gpu_memory_utilization * static_cast<double>(info.total_bytes)) - plan.in_use;
  const std::vector<CacheSpec> specs = workers.cache_specs();
  plan.cache = plan_within(specs, o, limits, std::max<int64_t>(0, plan.allowed - plan.needed()));
  plan.cache_bytes = plan.cache.used_bytes + state_bytes(specs, plan.cache);
  if (plan.needed() <= plan.allowed) return plan;
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
      plan.device, format_bytes(plan.total), o.gpu_memory_utilization, format_bytes(plan.in_use),
      format_bytes(std::max<int64_t>(0, plan.allowed)), files.root.string(), format_bytes(plan.needed()),
      format_bytes(plan.memory.weights), format_bytes(plan.memory.step), limits.max_num_batched_tokens,
      limits.max_num_seqs, cache, format_bytes(plan.runtime));
}

std::string to_string(const DevicePlan& plan) {
  const int64_t together = plan.in_use + plan.needed();
  std::string text = fmt::format("{}: a run takes\n", plan.device);
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
