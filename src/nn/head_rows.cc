#include "nn/head_rows.h"

#include "base/error.h"

namespace atom::nn {

Range local_heads(const Scope& s, int64_t heads, const std::string& name) {
  const int ranks = s.axis(Axis::attn).size();
  if (heads % ranks != 0) {
    throw invalid("{}: {} heads cannot be dealt to {} ranks; choose a rank count that divides {}", name,
                  heads, ranks, heads);
  }
  return s.local(heads, Shard::by_rows(Axis::attn), name);
}

void GroupedRows::append(std::vector<Piece>& pieces, Range of_groups, int64_t begin, int64_t count) const {
  for (int64_t g = of_groups.begin; g < of_groups.begin + of_groups.count; ++g) {
    pieces.push_back({{Source{.name = name, .begin = g * stride + begin, .stored_rows = groups * stride}},
                      count,
                      cols,
                      Shard{}});
  }
}

}  // namespace atom::nn
