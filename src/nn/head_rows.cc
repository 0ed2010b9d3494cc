#include "nn/head_rows.h"

#include "base/error.h"
#include "ops/cpu/rope_store.h"

namespace atom::nn {

int64_t checked_heads(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  if (kv_heads < 1 || heads % kv_heads != 0) {
    throw invalid("config.json: num_attention_heads {} is no multiple of num_key_value_heads {}", heads,
                  kv_heads);
  }
  if (head_dim < 1 || head_dim > ops::cpu::kMaxHeadDim) {
    throw invalid("config.json: head_dim {}: attention takes heads of 1 to {} elements", head_dim,
                  ops::cpu::kMaxHeadDim);
  }
  return heads;
}

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
