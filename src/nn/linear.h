// Linear layers that are cut over an axis: by columns of the product (no reduction), or by rows of the input
// (the result is a Partial).
#pragma once
#include <string>
#include <vector>

#include "nn/residual.h"
#include "nn/scope.h"

namespace atom::nn {

// One output of a fused projection: checkpoint tensor `name`.weight [size, in], cut in units.
struct Output {
  std::string name;
  int64_t size;
  int64_t unit = 1;
};

// Several projections of the same input as one matrix: q|k|v, gate|up.
class ColumnLinear {
 public:
  ColumnLinear(Scope s, Axis axis, int64_t in, const std::vector<Output>& outputs, bool bias);
  Tensor operator()(Ctx& c, Tensor x) const { return product(c, x, false); }  // [tokens, rows of this rank]
  // The same, where nobody reads x afterwards.
  Tensor spend(Ctx& c, Tensor x) const { return product(c, x, true); }
  const Matrix& weight() const { return weight_; }
  Tensor bias() const { return bias_; }

 private:
  Tensor product(Ctx& c, Tensor x, bool spends_x) const;

  Matrix weight_;
  Vector bias_;
};

// [in, out] cut on the input. The bias is added by the first rank only.
class RowLinear {
 public:
  RowLinear(Scope s, Axis axis, int64_t in, int64_t out, int64_t unit, bool bias);
  Partial operator()(Ctx& c, Tensor x) const { return partial(share(c, x)); }
  // This rank's share of the sum, for a block that adds more to it before it makes the Partial.
  Tensor share(Ctx& c, Tensor x) const;
  // The op that computes it, with memory for its result.
  ops::Linear share_op(Ctx& c, Tensor x) const;
  Partial partial(Tensor share) const { return Partial(share, *axis_); }

 private:
  Matrix weight_;
  Vector bias_;
  Communicator* axis_;
};

}  // namespace atom::nn
