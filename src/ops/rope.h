// Rotary position embedding: frequencies from a config, angles of a step.
#pragma once
#include <vector>

#include "ops/op.h"

namespace atom::ops {

// cos and sin of every token of a step, shared by all layers with the same rope. Both include the recipe's
// magnitude factor.
struct RopeAngles {
  Tensor cos, sin;  // [tokens, rotary_dim / 2] f32
};

// angles[t][i] = float32(positions[t] * inv_freq[i]), as the reference computes it.
struct ComputeRopeAngles {
  RopeAngles out;
  std::span<const int32_t> positions;
  std::span<const float> inv_freq;  // [rotary_dim / 2]
  // Dynamic NTK: the table of token t is computed for a context of lengths[t] tokens. Empty otherwise.
  std::span<const int32_t> lengths;
  float theta = 0;              // dynamic only
  float factor = 1;             // dynamic only
  int64_t original_length = 0;  // dynamic only
  float magnitude = 1;
};

void check(const ComputeRopeAngles& op);
inline Device device_of(const ComputeRopeAngles& op) { return op.out.cos.device; }

template <>
std::span<const Impl<ComputeRopeAngles>> gpu_impls<ComputeRopeAngles>();

}  // namespace atom::ops
