// Table look-up by token id, and row gathering.
#pragma once
#include "ops/op.h"
#include "ops/weight.h"

namespace atom::ops {

// out[t] = table[ids[t] - first_id] widened to f32, or zeros where the id is another rank's.
struct Embed {
  Tensor out;    // [tokens, cols] f32
  Weight table;  // [rows of this rank, cols], any storage type
  std::span<const int32_t> ids;
  int64_t first_id = 0;
};

// out[i] = x[rows[i]].
struct GatherRows {
  Tensor out;  // [rows.size(), n] f32
  Tensor x;    // [tokens, n] f32
  std::span<const int32_t> rows;
};

void check(const Embed& op);
void check(const GatherRows& op);
inline Device device_of(const Embed& op) { return op.out.device; }
inline Device device_of(const GatherRows& op) { return op.out.device; }

template <>
std::span<const Impl<Embed>> gpu_impls<Embed>();
template <>
std::span<const Impl<GatherRows>> gpu_impls<GatherRows>();

}  // namespace atom::ops
