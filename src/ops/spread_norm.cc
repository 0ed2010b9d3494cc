// Checks and the implementation list of the norm of spread vectors.
#include "ops/spread_norm.h"

#include "comm/communicator.h"
#include "ops/cpu/spread_norm_ref.h"

namespace atom::ops {

void check(const SpreadRmsNorm& op) {
  CHECK(op.x && op.x.rank == 2 && op.x.dtype == DType::f32 && op.x.strides[1] == 1, "x {}", op.x.to_string());
  CHECK(op.weight && op.weight.rank == 1 && op.weight.dtype == DType::f32 &&
            op.weight.dim(0) == op.x.dim(1) && op.weight.strides[0] == 1 && op.weight.device == op.x.device,
        "weight {} x {}", op.weight.to_string(), op.x.to_string());
  const int64_t ranks = op.reduce == nullptr ? 1 : op.reduce->size();
  CHECK(op.copies >= 1 && op.x.dim(1) * ranks == op.total * op.copies,
        "{} lanes of {} on {} ranks, {} of each", op.x.dim(1), op.total, ranks, op.copies);
}

template <>
std::span<const Impl<SpreadRmsNorm>> impls<SpreadRmsNorm>() {
  static const Impl<SpreadRmsNorm> list[] = {
      {"spread_norm.ref", accept_all<SpreadRmsNorm>, cpu::spread_rms_norm},
  };
  return list;
}

}  // namespace atom::ops
