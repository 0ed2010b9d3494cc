#include "nn/linear.h"

#include "base/error.h"

namespace atom::nn {
namespace {

// Feed-forward widths may be cut unevenly; heads may not.
bool may_be_ragged(Axis axis) { return axis == Axis::mlp; }

std::vector<Piece> fused_pieces(const Scope& s, Axis axis, int64_t in, const std::vector<Output>& outputs,
                                const char* tensor) {
  std::vector<Piece> pieces;
  for (const Output& o : outputs) {
    pieces.push_back(
        {{{(s / o.name).join(tensor)}}, o.size, in, Shard{0, axis, o.unit, may_be_ragged(axis)}});
  }
  return pieces;
}

std::string fused_name(const std::vector<Output>& outputs) {
  std::string name;
  for (const Output& o : outputs) name += (name.empty() ? "" : "|") + o.name;
  return name;
}

}  // namespace

ColumnLinear::ColumnLinear(Scope s, Axis axis, int64_t in, const std::vector<Output>& outputs, bool bias)
    : weight_(s.matrix(fused_name(outputs) + ".weight", fused_pieces(s, axis, in, outputs, "weight"))) {
  if (bias) bias_ = s.vector(fused_name(outputs) + ".bias", fused_pieces(s, axis, 1, outputs, "bias"));
}

Tensor ColumnLinear::product(Ctx& c, Tensor x, bool spends_x) const {
  Tensor y = c.alloc(x.dim(0), weight_.rows());
  ops::run(c.stream, ops::Linear{y, x, weight_, bias_, c.precision, spends_x});
  return y;
}

RowLinear::RowLinear(Scope s, Axis axis, int64_t in, int64_t out, int64_t unit, bool bias)
    : weight_(s.matrix("weight",
                       {Piece{{{s.join("weight")}}, out, in, Shard{1, axis, unit, may_be_ragged(axis)}}})),
      axis_(&s.axis(axis)) {
  // Ranks that shared a unit would both add it to the sum.
  if (in / unit < axis_->size()) {
    throw invalid("{}: {} units of {} over {} ranks; use at most {} ranks", s.join("weight"), in / unit, unit,
                  axis_->size(), in / unit);
  }
  if (bias) bias_ = s.vector("bias", out);
}

Tensor RowLinear::share(Ctx& c, Tensor x) const {
  const ops::Linear op = share_op(c, x);
  ops::run(c.stream, op);
  return op.out;
}

ops::Linear RowLinear::share_op(Ctx& c, Tensor x) const {
  const Tensor y = c.alloc(x.dim(0), weight_.rows());
  return {y, x, weight_, axis_->rank() == 0 ? Tensor(bias_) : Tensor{}, c.precision};
}

}  // namespace atom::nn
