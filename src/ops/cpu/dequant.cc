#include "ops/cpu/dequant.h"

#include <cstring>

#include "base/check.h"
#include "ops/cpu/dequant_blocks.h"
#include "tensor/small_floats.h"

namespace atom::ops {

bool can_dequantize(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || is_scaled_type(dtype) ||
         is_block_type(dtype);
}

void dequantize_row(DType dtype, const void* src, float* dst, int64_t n) {
  const auto* bytes = static_cast<const uint8_t*>(src);
  switch (dtype) {
    case DType::f32:
      std::memcpy(dst, src, static_cast<size_t>(n) * 4);
      return;
    case DType::bf16:
      for (int64_t i = 0; i < n; ++i) {
        uint16_t bits;
        std::memcpy(&bits, bytes + 2 * i, 2);
        dst[i] = bf16_to_f32(bits);
      }
      return;
    case DType::f16:
      for (int64_t i = 0; i < n; ++i) dst[i] = load_half(bytes + 2 * i);
      return;
    case DType::f8e4m3:
      for (int64_t i = 0; i < n; ++i) dst[i] = f8e4m3_to_f32(bytes[i]);
      return;
    case DType::f4e2m1x2:
      for (int64_t i = 0; i < n; i += 2) {
        dst[i] = f4e2m1_to_f32(bytes[i / 2] & 15);
        dst[i + 1] = f4e2m1_to_f32(bytes[i / 2] >> 4);
      }
      return;
    case DType::q4_0:
      return dequantize_blocks<Q4_0>(bytes, dst, n);
    case DType::q4_1:
      return dequantize_blocks<Q4_1>(bytes, dst, n);
    case DType::q5_0:
      return dequantize_blocks<Q5_0>(bytes, dst, n);
    case DType::q5_1:
      return dequantize_blocks<Q5_1>(bytes, dst, n);
    case DType::q8_0:
      return dequantize_blocks<Q8_0>(bytes, dst, n);
    case DType::q4_k:
      return dequantize_blocks<Q4_K>(bytes, dst, n);
    case DType::q5_k:
      return dequantize_blocks<Q5_K>(bytes, dst, n);
    case DType::q6_k:
      return dequantize_blocks<Q6_K>(bytes, dst, n);
    default:
      CHECK(false, "rows of {} cannot be widened", dtype_name(dtype));
  }
}

void dequantize_row(const WeightPart& part, int64_t row, float* dst) {
  const int64_t cols = part.data.dim(1);
  dequantize_row(part.data.dtype, part.data.row_bytes(row), dst, cols);
  if (!part.scale) return;
  const BlockScales& s = part.scale;
  const std::byte* scales = s.values.row_bytes((row + s.first_row) / s.block_rows);
  for (int64_t c = 0; c < cols; ++c) {
    const int64_t block = (c + s.first_col) / s.block_cols;
    dst[c] *= s.values.dtype == DType::e8m0 ? e8m0_to_f32(static_cast<uint8_t>(scales[block]))
                                            : reinterpret_cast<const float*>(scales)[block];
  }
}

}  // namespace atom::ops
