// Matrix products with weights.
#pragma once
#include "ops/op.h"
#include "ops/weight.h"

namespace atom::ops {

// How activations enter a product. `exact` keeps float32 values; `fast` may round them to what the weight's
// type suggests (bf16 for bf16 weights, f16 for f16, 8-bit blocks for GGUF types). Sums are float32 in both.
enum class Precision : uint8_t { exact, fast };

// out = x · Wᵀ + bias.
struct Linear {
  Tensor out;  // [tokens, w.rows] f32, rows may be strided
  Tensor x;    // [tokens, w.cols] f32, rows may be strided
  Weight w;
  Tensor bias;  // null or [w.rows] f32
  Precision precision = Precision::exact;
  bool spends_x = false;  // nobody reads x after this op: what makes it may leave out what only others read
};

enum class Activation : uint8_t { silu };

// out = act(x · Gᵀ + bg) * (x · Uᵀ + bu), with w = G stacked on U.
struct GatedUp {
  Tensor out;   // [tokens, w.rows / 2] f32
  Tensor x;     // [tokens, w.cols] f32
  Weight w;     // gate rows first, then up rows
  Tensor bias;  // null or [w.rows] f32
  Activation activation = Activation::silu;
  Precision precision = Precision::exact;
  bool spends_x = false;  // as Linear's
};

// Independent products that run as one: their rows are dealt to the threads together, so that many small
// products cost one start of the team.
template <class Op>
struct Group {
  std::span<const Op> ops;
};

void check(const Linear& op);
void check(const GatedUp& op);
inline Device device_of(const Linear& op) { return op.out.device; }
inline Device device_of(const GatedUp& op) { return op.out.device; }

template <>
std::span<const Impl<Linear>> gpu_impls<Linear>();
template <>
std::span<const Impl<GatedUp>> gpu_impls<GatedUp>();

template <class Op>
void check(const Group<Op>& group) {
  for (const Op& op : group.ops) check(op);
}

}  // namespace atom::ops
