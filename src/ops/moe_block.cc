// Checks, the composed entry and the CPU's list of whole mixtures.
#include "ops/moe_block.h"

namespace atom::ops {
namespace {

constexpr Impl<MoeBlock> kMoeBlock[] = {{"moe_block.composed", accept_all<MoeBlock>, moe_block_composed}};

bool same_rows(const Tensor& a, const Tensor& b) { return a.data == b.data && a.strides[0] == b.strides[0]; }

}  // namespace

void check(const MoeBlock& op) {
  check(op.route);
  check(op.experts);
  CHECK(same_rows(op.route.logits.x, op.experts.x), "the router sees other rows than the experts");
  CHECK(
      same_rows(op.route.route.ids, op.experts.ids) && same_rows(op.route.route.weights, op.experts.weights),
      "the experts are others than those that are chosen");
  CHECK(op.experts.accumulate == !!op.shared_up.out, "experts are added to a shared expert or to nothing");
  if (!op.shared_up.out) return;
  check(op.shared_up);
  check(op.shared_down);
  CHECK(same_rows(op.shared_up.x, op.experts.x) && same_rows(op.shared_down.x, op.shared_up.out) &&
            same_rows(op.shared_down.out, op.experts.out),
        "the shared expert is not of the rows of the experts");
}

void moe_block_composed(Stream& stream, const MoeBlock& op) {
  run(stream, op.route);
  if (op.shared_up.out) {
    run(stream, op.shared_up);
    run(stream, op.shared_down);
    if (op.route.also.out) run(stream, SigmoidScale{op.shared_down.out, op.route.also.out});
  }
  run(stream, op.experts);
}

template <>
std::span<const Impl<MoeBlock>> impls<MoeBlock>() {
  return kMoeBlock;
}

}  // namespace atom::ops
