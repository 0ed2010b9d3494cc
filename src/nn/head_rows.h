// Rows of a packed projection, picked head by head.
#pragma once
#include <string>
#include <vector>

#include "nn/scope.h"

namespace atom::nn {

// `heads`. Throws Error naming the config's keys unless they share the key heads evenly and none is wider
// than attention takes.
int64_t checked_heads(int64_t heads, int64_t kv_heads, int64_t head_dim);

// The heads of this rank on the attention axis. Throws Error naming `name` unless every rank has its own:
// what heads add to the stream must be added once.
Range local_heads(const Scope& s, int64_t heads, const std::string& name);

// Tensor `name` [groups * stride, cols]: one group of rows per head, in which several parts lie side by side.
struct GroupedRows {
  std::string name;
  int64_t cols = 0, groups = 0, stride = 0;

  // Appends rows begin .. begin + count - 1 of each of these groups, as they are: other ranks pick others.
  void append(std::vector<Piece>& pieces, Range of_groups, int64_t begin, int64_t count) const;
};

}  // namespace atom::nn
