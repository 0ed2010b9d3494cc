#include "runtime/cache_scales.h"

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace atom {
namespace {

constexpr const char* kRemedy = "use --kv-cache-dtype auto";

float read_one(const StoredTensor& stored, const Checkpoint& checkpoint) {
  int64_t elements = 1;
  for (const int64_t d : stored.shape) elements *= d;
  const bool known = stored.dtype == DType::f32 || stored.dtype == DType::bf16 || stored.dtype == DType::f16;
  if (elements != 1 || !known) {
    throw invalid("{}: is {}; the scale of an FP8 cache must be one F32, BF16 or F16 number; {}", stored.name,
                  to_string(stored), kRemedy);
  }
  std::byte raw[4] = {};
  checkpoint.read(stored, 0, {raw, static_cast<size_t>(dtype_bytes(*stored.dtype, 1))});
  float value;
  uint16_t half;
  std::memcpy(&value, raw, 4);
  std::memcpy(&half, raw, 2);
  if (stored.dtype == DType::bf16) value = bf16_to_f32(half);
  if (stored.dtype == DType::f16) value = f16_to_f32(half);
  if (!std::isnormal(value) || value < 0 || !std::isnormal(1 / value)) {
    throw invalid("{}: is {}, and an FP8 cache cannot be scaled by that; {}", stored.name, value, kRemedy);
  }
  return value;
}

}  // namespace

void require_cache_types(const ModelTables& tables, const CacheTypes& types) {
  if (types.dtype != DType::f8e4m3) return;
  for (const LayerCache& cache : tables.caches) {
    if (cache.fp8 != LayerCache::Fp8::none) continue;
    throw invalid(
        "--kv-cache-dtype fp8: {} caches latents, which are kept in 16 or 32 bits, and has no index keys; "
        "use "
        "auto, float32, bfloat16 or float16",
        cache.path);
  }
}

std::string cache_types_text(const ModelTables& tables, const CacheTypes& types) {
  std::string text = dtype_name(types.dtype);
  for (const LayerCache& cache : tables.caches) {
    if (cache.dtype(types) != types.dtype) return text + ", latents in " + dtype_name(types.plain);
  }
  return text;
}

std::vector<ops::KvScales> read_cache_scales(const ModelTables& tables, const Checkpoint& checkpoint) {
  std::vector<const StoredTensor*> stored_scales;  // of all layers
  for (const StoredTensor& stored : checkpoint.tensors()) {
    if (stored.name.ends_with(".k_scale") || stored.name.ends_with(".v_scale"))
      stored_scales.push_back(&stored);
  }
  std::vector<ops::KvScales> scales;
  for (const LayerCache& cache : tables.caches) {
    const std::string prefix = cache.path + ".";
    const auto scale_of = [&](const std::string& letter) {
      if (cache.fp8 != LayerCache::Fp8::layer_scales) return 1.0f;
      const std::string suffix = letter + "_scale";
      for (const std::string& module :
           {std::string(), letter + "_proj.", std::string("attn."), std::string("qkv_proj.")}) {
        if (const StoredTensor* stored = checkpoint.find(prefix + module + suffix))
          return read_one(*stored, checkpoint);
      }
      if (const StoredTensor* stored = checkpoint.find(prefix + letter + "_proj.output_scale"))
        return read_one(*stored, checkpoint);
      for (const StoredTensor* stored : stored_scales) {
        if (stored->name.starts_with(prefix) && stored->name.ends_with("." + suffix))
          throw invalid("{}: the scale of an FP8 cache is not known by this name; {}", stored->name, kRemedy);
      }
      return 1.0f;
    };
    scales.push_back({scale_of("k"), scale_of("v")});
  }
  return scales;
}

}  // namespace atom
