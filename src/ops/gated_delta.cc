// Checks, the composed entry and the CPU's list of gated delta nets from their projected rows.
#include "ops/gated_delta.h"

namespace atom::ops {
namespace {

constexpr Impl<GatedDelta> kGatedDelta[] = {
    {"gated_delta.composed", accept_all<GatedDelta>, gated_delta_composed}};

}  // namespace

void check(const GatedDelta& op) {
  check(op.conv);
  check(op.rule);
  check(op.norm);
  CHECK(op.rule.qkv.data == op.conv.out.data && op.rule.qkv.strides[0] == op.conv.out.strides[0] &&
            op.norm.x.data == op.rule.out.data && op.norm.x.strides[0] == op.rule.out.strides[0],
        "the rule and the norm read other tensors than those that are computed");
  CHECK(op.rule.sequences.data() == op.conv.sequences.data() &&
            op.rule.sequences.size() == op.conv.sequences.size(),
        "the convolution and the rule are of different sequences");
  CHECK(op.norm.weight.dim(0) == op.rule.v_dim, "a norm of {} lanes for heads of {}", op.norm.weight.dim(0),
        op.rule.v_dim);
}

void gated_delta_composed(Stream& stream, const GatedDelta& op) {
  run(stream, op.conv);
  run(stream, op.rule);
  run(stream, op.norm);
}

template <>
std::span<const Impl<GatedDelta>> impls<GatedDelta>() {
  return kGatedDelta;
}

}  // namespace atom::ops
