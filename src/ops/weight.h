// A weight matrix as the checkpoint stores it.
#pragma once
#include <span>

#include "tensor/tensor.h"

namespace atom::ops {

// A run of rows of one stored matrix. On the CPU it usually points into the mapped file.
struct WeightPart {
  Tensor data;   // [rows, cols], any storage type; rows may be strided (a column cut), columns are contiguous
  Tensor scale;  // null, or the scales of a quantised format (the format's file says their shape)
};

// Parts stacked on rows: fused q|k|v or gate|up. The matrix is [out, in], used as x · Wᵀ.
struct Weight {
  std::span<const WeightPart> parts;
  int64_t rows = 0;  // sum over parts
  int64_t cols = 0;
};

}  // namespace atom::ops
