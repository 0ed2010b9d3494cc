// RMS norm weights.
#pragma once
#include "nn/scope.h"
#include "ops/norm.h"

namespace atom::nn {

class RmsNorm {
 public:
  // weight_offset 1 is the (1 + w) kind.
  RmsNorm(Scope s, int64_t n, float eps, float weight_offset = 0)
      : weight_(s.vector("weight", n)), eps_(eps), weight_offset_(weight_offset) {}
  Tensor weight() const { return weight_; }
  float eps() const { return eps_; }
  float weight_offset() const { return weight_offset_; }

 private:
  Vector weight_;
  float eps_, weight_offset_;
};

}  // namespace atom::nn
