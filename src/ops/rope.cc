// Checks and implementation list of the rotary angles.
#include "ops/rope.h"

#include "ops/cpu/rope_angles.h"

namespace atom::ops {

void check(const ComputeRopeAngles& op) {
  const auto tokens = static_cast<int64_t>(op.positions.size());
  const auto pairs = static_cast<int64_t>(op.inv_freq.size());
  for (const Tensor* t : {&op.out.cos, &op.out.sin}) {
    CHECK(*t && t->rank == 2 && t->dtype == DType::f32 && t->strides[1] == 1 && t->dim(0) == tokens &&
              t->dim(1) == pairs && t->device == op.out.cos.device,
          "{} for {} positions and {} pairs", t->to_string(), tokens, pairs);
  }
  if (!op.lengths.empty()) {
    CHECK(op.lengths.size() == op.positions.size() && op.theta > 0 && op.original_length > 0 && pairs > 1,
          "{} lengths for {} positions, theta {}, original length {}, {} pairs", op.lengths.size(), tokens,
          op.theta, op.original_length, pairs);
  }
}

template <>
std::span<const Impl<ComputeRopeAngles>> impls<ComputeRopeAngles>() {
  static const Impl<ComputeRopeAngles> list[] = {
      {"rope.ref", accept_all<ComputeRopeAngles>, cpu::compute_rope_angles},
  };
  return list;
}

}  // namespace atom::ops
