// The most likely token of every row of logits: greedy sampling where the logits are.
#pragma once
#include "ops/op.h"

namespace atom::ops {

// out[t] = the first column of the largest logits[t]; -1 if a value is NaN or +inf, or all are -inf.
struct ArgMax {
  Tensor out;     // [rows] i32
  Tensor logits;  // [rows, n] f32
};

void check(const ArgMax& op);
inline Device device_of(const ArgMax& op) { return op.out.device; }

template <>
std::span<const Impl<ArgMax>> gpu_impls<ArgMax>();

}  // namespace atom::ops
