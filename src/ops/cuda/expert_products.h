// What the tensor cores' ways through a mixture of experts share on the host: which ops they take, and the
// matrices of their two products, gate with up and down.
#pragma once
#include "ops/gpu/group_uses.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {

// Why products that round x cannot take the op, if not for a matrix that `refuse(part)` names; null: they
// can.
template <class Refuse>
const char* refuse_rounded_experts(const MoeExperts& op, const Refuse& refuse) {
  if (op.precision != Precision::fast) return "rounds activations";
  if (op.x.strides[0] % 4 != 0 || !aligned16(op.x.data)) return "rows of x are not aligned";
  if (const char* reason = refuse_matrices(op, refuse)) return reason;
  const Experts experts = experts_of(op);
  return experts.gate.first.block_cols != experts.up.first.block_cols ? "different scales" : nullptr;
}

// Why uses cannot be grouped by expert; null: they can.
inline const char* refuse_grouping(const MoeExperts& op) {
  constexpr int64_t kMostChosen = 65535;
  if (op.down.size() > kMaxGroupedExperts) return "too many experts";
  return op.ids.dim(1) > kMostChosen ? "too many experts of a token" : nullptr;
}

// Sets what a product (RowProduct, PackedProduct, GroupedProduct) with gate and up reads, and its activation.
template <class Product>
void set_up_matrices(Product& product, const MoeExperts& op, const Experts& experts) {
  product.type = op.gate_up.front().parts.front().data.dtype;
  product.w = experts.gate;
  product.up = experts.up;
  product.bias = experts.gate_bias;
  product.up_bias = experts.up_bias;
  product.rows = experts.inter;
  product.cols = experts.hidden;
  product.gated = true;
  product.experts = experts;
}
// The same with down.
template <class Product>
void set_down_matrices(Product& product, const MoeExperts& op, const Experts& experts) {
  product.type = op.down.front().parts.front().data.dtype;
  product.w = experts.down;
  product.bias = experts.down_bias;
  product.rows = experts.hidden;
  product.cols = experts.inter;
  product.experts = experts;
}

}  // namespace atom::ops::gpu_kernels
