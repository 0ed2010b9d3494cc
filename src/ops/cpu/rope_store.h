// Norm, rope and cache store of the rows of a step.
#pragma once
#include "ops/attention.h"
#include "ops/cpu/rope_head.h"

namespace atom::ops::cpu {

inline constexpr int32_t kMaxHeadDim = 1024;

void qk_norm_rope_store(Stream& stream, const QkNormRopeStore& op, TransformHead transform, StoreKv store);

}  // namespace atom::ops::cpu
