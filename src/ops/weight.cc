#include "ops/weight.h"

#include <algorithm>

#include "ops/cpu/dequant.h"
#include "tensor/mxfp4_pieces.h"

namespace atom::ops {

WeightPart WeightPart::rows(int64_t begin, int64_t count) const {
  WeightPart part = *this;
  part.data = data.rows(begin, count);
  if (!scale) return part;
  const int64_t from = begin + scale.first_row, block = from / scale.block_rows;
  const int64_t last = (from + std::max<int64_t>(count, 1) - 1) / scale.block_rows;
  part.scale.values = scale.values.rows(block, last - block + 1);
  part.scale.first_row = from % scale.block_rows;
  return part;
}

void check_part(const WeightPart& part, int64_t cols) {
  const Tensor& data = part.data;
  const BlockScales& scale = part.scale;
  if (data.dtype == DType::mxfp4_8x64) {
    CHECK(data.rank == 2 && data.dim(0) % kPieceRows == 0 && data.dim(1) == cols &&
              data.device.kind != Device::cpu && !scale,
          "pieces {} of {} columns", data.to_string(), cols);
    return;
  }
  CHECK(data && data.rank == 2 && data.dim(1) == cols && data.strides[1] == 1, "part {} of {} columns",
        data.to_string(), cols);
  CHECK(can_dequantize(data.dtype) && is_scaled_type(data.dtype) == static_cast<bool>(scale),
        "no use for {}{} weights", scale ? "scaled " : "", dtype_name(data.dtype));
  CHECK(cols % dtype_info(data.dtype).block == 0, "{} columns of {}", cols, dtype_name(data.dtype));
  if (!scale) return;
  const Tensor& values = scale.values;
  const auto blocks = [](int64_t first, int64_t count, int64_t block) {
    return (first + count + block - 1) / block;
  };
  CHECK(scale.block_rows > 0 && scale.block_cols > 0 && scale.first_row >= 0 &&
            scale.first_row < scale.block_rows && scale.first_col >= 0 && scale.first_col < scale.block_cols,
        "element ({}, {}) of a block of {} x {}", scale.first_row, scale.first_col, scale.block_rows,
        scale.block_cols);
  CHECK(values.rank == 2 && values.strides[1] == 1 && values.device == data.device &&
            values.dim(0) >= blocks(scale.first_row, data.dim(0), scale.block_rows) &&
            values.dim(1) >= blocks(scale.first_col, cols, scale.block_cols),
        "scales {} of {} in blocks of {} x {}", values.to_string(), data.to_string(), scale.block_rows,
        scale.block_cols);
  if (data.dtype == DType::f8e4m3) {
    CHECK(values.dtype == DType::f32, "scales {}", values.to_string());
  } else {
    CHECK(values.dtype == DType::e8m0 && scale.block_rows == 1 && scale.block_cols == 32 &&
              scale.first_col % 2 == 0,
          "scales {} per {} x {}", values.to_string(), scale.block_rows, scale.block_cols);
  }
}

}  // namespace atom::ops
