// RMS norm of vectors that lie spread over the ranks of an axis.
#pragma once
#include "ops/op.h"

namespace atom {
class Communicator;
}

namespace atom::ops {

// x = x / sqrt(sum(x²) / total + eps) * weight, where the sum goes over the lanes of all ranks.
struct SpreadRmsNorm {
  Tensor x;            // [tokens, n] f32, this rank's lanes, normalised in place; rows may be strided
  Tensor weight;       // [n] f32
  int64_t total = 0;   // lanes of the whole vector
  int32_t copies = 1;  // ranks that hold each lane
  float eps = 0;
  Communicator* reduce = nullptr;  // the axis; null or size 1: the vector is whole here
};

void check(const SpreadRmsNorm& op);
inline Device device_of(const SpreadRmsNorm& op) { return op.x.device; }

template <>
std::span<const Impl<SpreadRmsNorm>> gpu_impls<SpreadRmsNorm>();

}  // namespace atom::ops
