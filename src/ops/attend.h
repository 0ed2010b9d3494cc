// Attention of a layer from its qkv rows to what the output projection takes, as one op.
#pragma once
#include "ops/attention.h"
#include "ops/delta_rule.h"

namespace atom::ops {

// `store`, then `attention` over what it has stored, then out *= sigmoid(gate). The q heads of store.qkv are
// left in no particular state.
struct Attend {
  QkNormRopeStore store;
  PagedAttention attention;  // q: store.qkv; the same heads, caches and batch as `store`
  Tensor gate;               // null or [tokens, heads * head_dim] f32, rows may be strided
};

void check(const Attend& op);
inline Device device_of(const Attend& op) { return op.attention.out.device; }

template <>
std::span<const Impl<Attend>> gpu_impls<Attend>();

// One op after the other, on every device.
void attend_composed(Stream& stream, const Attend& op);

}  // namespace atom::ops
