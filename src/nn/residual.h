// Residual and Partial: where reductions over ranks and their fusion with add and norm live.
#pragma once
#include "nn/context.h"
#include "nn/norm.h"

namespace atom::nn {

// A sum that is still spread over the ranks of an axis. Only Residual can consume it.
class [[nodiscard]] Partial {
 public:
  Partial(Tensor value, Communicator& axis) : value_(value), axis_(&axis) {}

 private:
  friend class Residual;
  Tensor value_;  // [tokens, hidden]
  Communicator* axis_;
};

// The stream that layers read through norms and add to. `+=` defers, so that all-reduce, add and the next
// norm are one op.
class Residual {
 public:
  explicit Residual(Tensor x) : x_(x) {}  // [tokens, hidden]
  void operator+=(Partial p) {
    CHECK(!pending_, "two sums added without a norm between them");
    pending_ = p.value_;
    axis_ = p.axis_;
  }
  // The normalised stream, after adding what is pending.
  Tensor norm(Ctx& c, const RmsNorm& n);
  // norm, block, deferred add.
  template <class Block>
  void apply(Ctx& c, const RmsNorm& n, const Block& block) {
    *this += block(c, norm(c, n));
  }
  // Makes the stream whole, to hand it to the next stage.
  Tensor settle(Ctx& c);

 private:
  Tensor x_;
  Tensor pending_;
  Communicator* axis_ = nullptr;
};

}  // namespace atom::nn
