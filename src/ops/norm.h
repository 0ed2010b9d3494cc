// RMS norm, alone and fused with the residual add and the reduction before it.
#pragma once
#include "ops/op.h"

namespace atom {
class Communicator;
}

namespace atom::ops {

// residual += all_reduce(add); out = residual / sqrt(mean(residual²) + eps) * (weight_offset + weight).
struct AddRmsNorm {
  Tensor out;       // [tokens, hidden] f32; may be null: only the sum is wanted
  Tensor residual;  // [tokens, hidden] f32, updated in place
  Tensor add;       // null, or [tokens, hidden] f32: this rank's share of a sum; its content is destroyed
  Tensor weight;    // [hidden] f32 (null when out is)
  float eps = 0;
  float weight_offset = 0;         // 1 for the (1 + w) kind
  Communicator* reduce = nullptr;  // the axis over which `add` is spread; null or size 1: whole already
};

// out = x / sqrt(mean(x²) + eps) * (weight_offset + weight), over the last dim.
struct RmsNorm {
  Tensor out;     // [tokens, n] f32, may be x itself; rows may be strided
  Tensor x;       // [tokens, n] f32
  Tensor weight;  // [n] f32
  float eps = 0;
  float weight_offset = 0;
};

void check(const AddRmsNorm& op);
void check(const RmsNorm& op);
inline Device device_of(const AddRmsNorm& op) { return op.residual.device; }
inline Device device_of(const RmsNorm& op) { return op.out.device; }

template <>
std::span<const Impl<AddRmsNorm>> gpu_impls<AddRmsNorm>();
template <>
std::span<const Impl<RmsNorm>> gpu_impls<RmsNorm>();

}  // namespace atom::ops
