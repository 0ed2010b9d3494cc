// RMS norm of rows, and the row kernels of each instruction set.
#pragma once
#include "ops/norm.h"

namespace atom::ops::cpu {

// x += add unless add is null; out = x / sqrt(mean(x²) + eps) * (weight_offset + weight) unless out is null.
// out may be x.
using NormRow = void (*)(float* out, float* x, const float* add, const float* weight, int64_t n, float eps,
                         float weight_offset);
void norm_row_ref(float* out, float* x, const float* add, const float* weight, int64_t n, float eps,
                  float weight_offset);
void norm_row_avx2(float* out, float* x, const float* add, const float* weight, int64_t n, float eps,
                   float weight_offset);
void norm_row_avx512(float* out, float* x, const float* add, const float* weight, int64_t n, float eps,
                     float weight_offset);

void add_rms_norm(Stream& stream, const AddRmsNorm& op, NormRow row);
void rms_norm(Stream& stream, const RmsNorm& op, NormRow row);

}  // namespace atom::ops::cpu
