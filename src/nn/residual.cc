#include "nn/residual.h"

namespace atom::nn {

Tensor Residual::norm(Ctx& c, const RmsNorm& n) {
  c.arena.begin_block();
  Tensor out = c.alloc(x_.dim(0), x_.dim(1));
  ops::run(c.stream, ops::AddRmsNorm{out, x_, pending_, n.weight(), n.eps(), n.weight_offset(), axis_});
  pending_ = {};
  return out;
}

Tensor Residual::settle(Ctx& c) {
  if (pending_) {
    ops::run(c.stream, ops::AddRmsNorm{.residual = x_, .add = pending_, .reduce = axis_});
    pending_ = {};
  }
  return x_;
}

}  // namespace atom::nn
