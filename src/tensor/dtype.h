// Element types: plain ones, and GGUF block types whose rows are whole blocks.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace atom {

enum class DType : uint8_t {
  f32,
  bf16,
  f16,
  f8e4m3,
  f8e5m2,
  f4e2m1x2,
  e8m0,
  i8,
  u8,
  i16,
  i32,
  i64,
  mxfp4_8x64,  // f4e2m1x2 and its e8m0 scales as GPUs have them: tensor/mxfp4_pieces.h
  // GGUF blocks (32 or 256 elements with their scales).
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q4_k,
  q5_k,
  q6_k,
};
inline constexpr int kDTypes = static_cast<int>(DType::q6_k) + 1;

struct DTypeInfo {
  const char* name;
  int32_t block;        // elements in one block; 1 for plain types, 2 for f4e2m1x2 (low four bits first)
  int32_t block_bytes;  // bytes of one block
};
const DTypeInfo& dtype_info(DType dtype);

inline const char* dtype_name(DType dtype) { return dtype_info(dtype).name; }
// GGUF blocks, which hold their own scales.
inline bool is_block_type(DType dtype) { return dtype >= DType::q4_0; }
// Types that mean nothing without scales beside them.
inline bool is_scaled_type(DType dtype) { return dtype == DType::f8e4m3 || dtype == DType::f4e2m1x2; }
// Bytes of `elements` consecutive elements; elements must be a multiple of the block.
inline int64_t dtype_bytes(DType dtype, int64_t elements) {
  const DTypeInfo& info = dtype_info(dtype);
  return elements / info.block * info.block_bytes;
}
std::optional<DType> dtype_from_name(std::string_view name);

// Plain conversions, round to nearest even. NaN stays NaN.
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);

}  // namespace atom
