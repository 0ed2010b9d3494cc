// A cache of E4M3: which models can have one, and what checkpoints say of its scales.
#pragma once
#include <vector>

#include "checkpoint/checkpoint.h"
#include "nn/param.h"
#include "ops/attention.h"

namespace atom {

// Throws Error (invalid) if some layer cannot keep its cache in `dtype`.
void require_cache_dtype(const ModelTables& tables, DType dtype);

// By cache handle: one scale for a layer's keys and one for its values, where the checkpoint has k_scale and
// v_scale in the layer or in its k_proj and v_proj; else 1. Throws Error (invalid) for scales that are not
// one positive number.
std::vector<ops::KvScales> read_cache_scales(const ModelTables& tables, const Checkpoint& checkpoint);

}  // namespace atom
