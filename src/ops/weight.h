// A weight matrix as the checkpoint stores it.
#pragma once
#include <span>

#include "tensor/tensor.h"

namespace atom::ops {

// The scales of a part: element (r, c) stands for data(r, c) * values((r + first_row) / block_rows,
// (c + first_col) / block_cols). Cuts inside a block keep the place of their first element in it.
struct BlockScales {
  Tensor
      values;  // [blocks down, blocks across]; f32 beside f8e4m3, e8m0 beside f4e2m1x2; rows may be strided
  int64_t block_rows = 1, block_cols = 1;
  int64_t first_row = 0, first_col = 0;  // less than block_rows, block_cols

  explicit operator bool() const { return static_cast<bool>(values); }
  // True if a row's scale changes at multiples of `step` columns only.
  bool steady_over(int64_t step, int64_t cols) const {
    return (block_cols % step == 0 && first_col % step == 0) || first_col + cols <= block_cols;
  }
};

// A run of rows of one stored matrix. On the CPU it usually points into the mapped file.
struct WeightPart {
  Tensor data;  // [rows, cols], any storage type; rows may be strided (a column cut), columns are contiguous
  BlockScales scale;  // of the types that need them (is_scaled_type)

  WeightPart rows(int64_t begin, int64_t count) const;
  int64_t bytes() const { return data.bytes() + (scale ? scale.values.bytes() : 0); }
};

// Shape, element type and scales of a part that is used as [*, cols]: CHECKs.
void check_part(const WeightPart& part, int64_t cols);

// Parts stacked on rows: fused q|k|v or gate|up. The matrix is [out, in], used as x · Wᵀ.
struct Weight {
  std::span<const WeightPart> parts;
  int64_t rows = 0;  // sum over parts
  int64_t cols = 0;
};

}  // namespace atom::ops
