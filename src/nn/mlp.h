// Dense feed-forward block: down(act(gate(x)) * up(x)).
#pragma once
#include "nn/linear.h"

namespace atom::nn {

class GatedMlp {
 public:
  GatedMlp(Scope s, int64_t hidden, int64_t inter, bool bias = false)
      : gate_up_(s, Axis::mlp, hidden, {{"gate_proj", inter}, {"up_proj", inter}}, bias),
        down_(s / "down_proj", Axis::mlp, inter, hidden, 1, bias) {}

  Partial operator()(Ctx& c, Tensor x) const { return down_.partial(share(c, x)); }

  // This rank's share of the sum, for a block that adds more to it.
  Tensor share(Ctx& c, Tensor x) const {
    Tensor h = c.alloc(x.dim(0), gate_up_.weight().rows() / 2);
    ops::run(c.stream,
             ops::GatedUp{h, x, gate_up_.weight(), gate_up_.bias(), ops::Activation::silu, c.precision});
    return down_.share(c, h);
  }

 private:
  ColumnLinear gate_up_;
  RowLinear down_;
};

}  // namespace atom::nn
