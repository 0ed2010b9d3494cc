// Widening of stored rows to float32.
#pragma once
#include <cstdint>

#include "ops/weight.h"

namespace atom::ops {

// True for the types dequantize_row knows: f32, bf16, f16, f8e4m3, f4e2m1x2 and the GGUF blocks.
bool can_dequantize(DType dtype);

// n consecutive elements from src, which may be unaligned; n is a multiple of the type's block. Exact up to
// the float32 rounding of scale * quant + minimum.
void dequantize_row(DType dtype, const void* src, float* dst, int64_t n);

// Row `row` of a part, with its scales: part.data.dim(1) floats.
void dequantize_row(const WeightPart& part, int64_t row, float* dst);

}  // namespace atom::ops
