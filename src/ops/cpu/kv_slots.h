// The paged cache: where a sequence's keys and values lie, and their element types.
#pragma once
#include "ops/attention.h"
#include "ops/cpu/attention_job.h"
#include "tensor/small_floats.h"

namespace atom::ops::cpu {

// Byte address of the slot of (position, kv head).
inline std::byte* kv_slot(const Tensor& cache, const int32_t* block_table, int64_t position, int64_t head) {
  const int64_t block_size = cache.dims[2];
  const int64_t element = block_table[position / block_size] * cache.strides[0] + head * cache.strides[1] +
                          position % block_size * cache.strides[2];
  return static_cast<std::byte*>(cache.data) + dtype_bytes(cache.dtype, element);
}

inline float load_element(DType dtype, const std::byte* row, int64_t i) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(row)[i];
  if (dtype == DType::f8e4m3) return f8e4m3_to_f32(reinterpret_cast<const uint8_t*>(row)[i]);
  const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[i];
  return dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

inline KvType kv_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return KvType::f32;
    case DType::bf16:
      return KvType::bf16;
    case DType::f16:
      return KvType::f16;
    case DType::f8e4m3:
      return KvType::f8e4m3;
    default:
      CHECK(false, "a cache of {}", dtype_name(dtype));
  }
}

}  // namespace atom::ops::cpu
