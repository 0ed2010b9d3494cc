// Norm and rope of one head, and the store of a row in the cache's type: the row kernels of each instruction
// set. Plain pointers only.
#pragma once
#include <cstdint>

#include "ops/cpu/attention_job.h"

namespace atom::ops::cpu {

struct HeadTransform {
  const float* norm = nullptr;  // [head_dim]; null: no norm
  const float* cos = nullptr;   // [rotary_dim / 2]; null: no rotation
  const float* sin = nullptr;
  int32_t head_dim = 0, rotary_dim = 0;
  bool interleaved = false;
  float eps = 0, weight_offset = 0;
};

// out may be in.
using TransformHead = void (*)(float* out, const float* in, const HeadTransform& transform);
void transform_head_ref(float* out, const float* in, const HeadTransform& transform);
void transform_head_avx2(float* out, const float* in, const HeadTransform& transform);
void transform_head_avx512(float* out, const float* in, const HeadTransform& transform);

// Rounds to nearest even; E4M3 saturates.
using StoreKv = void (*)(KvType type, void* out, const float* in, int64_t n);
void store_kv_ref(KvType type, void* out, const float* in, int64_t n);
void store_kv_avx2(KvType type, void* out, const float* in, int64_t n);
void store_kv_avx512(KvType type, void* out, const float* in, int64_t n);

}  // namespace atom::ops::cpu
