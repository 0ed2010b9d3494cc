// A cache of E4M3: which models can have one, what of it is in another type, and what checkpoints say of its
// scales.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "nn/param.h"
#include "ops/attention.h"

namespace atom {

// Throws Error (invalid) if the model has nothing that could be kept in E4M3 and that is asked for.
void require_cache_types(const ModelTables& tables, const CacheTypes& types);

// For people: "bf16", "f8e4m3" or "f8e4m3, latents in bf16".
std::string cache_types_text(const ModelTables& tables, const CacheTypes& types);

// By cache handle, of layers with keys and values: one scale for the keys and one for the values, where the
// checkpoint has k_scale and v_scale in the layer or in its k_proj and v_proj, or their output_scale; else 1.
// Throws Error (invalid) for scales that are not one positive number.
std::vector<ops::KvScales> read_cache_scales(const ModelTables& tables, const Checkpoint& checkpoint);

}  // namespace atom
