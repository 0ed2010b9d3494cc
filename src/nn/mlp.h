// Dense feed-forward block: down(act(gate(x)) * up(x)).
#pragma once
#include "nn/linear.h"

namespace atom::nn {

class GatedMlp {
 public:
  GatedMlp(Scope s, int64_t hidden, int64_t inter, bool bias = false)
      : gate_up_(s, Axis::mlp, hidden, {{"gate_proj", inter}, {"up_proj", inter}}, bias),
        down_(s / "down_proj", Axis::mlp, inter, hidden, 1, bias) {}

  // Nobody reads x afterwards.
  Partial operator()(Ctx& c, Tensor x) const {
    ops::GatedUp up = up_op(c, x);
    up.spends_x = true;
    ops::run(c.stream, up);
    return down_(c, up.out);
  }

  // The two ops, with memory for their results, for a block that adds more to this rank's share of the sum.
  ops::GatedUp up_op(Ctx& c, Tensor x) const {
    const Tensor h = c.alloc(x.dim(0), gate_up_.weight().rows() / 2);
    return {h, x, gate_up_.weight(), gate_up_.bias(), ops::Activation::silu, c.precision};
  }
  ops::Linear down_op(Ctx& c, Tensor h) const { return down_.share_op(c, h); }

 private:
  ColumnLinear gate_up_;
  RowLinear down_;
};

}  // namespace atom::nn
