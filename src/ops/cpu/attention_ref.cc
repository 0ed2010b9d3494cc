// The reference of paged attention: the definition, in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/attention_paged.h"
#include "ops/cpu/kv_slots.h"

namespace atom::ops::cpu {
namespace {

void attend_row(const PagedAttention& op, const AttentionSequence& s, int64_t row, int64_t head) {
  const int64_t position = int64_t{s.context} + row;
  const int64_t first = op.window == 0 ? 0 : std::max<int64_t>(0, position - op.window + 1);
  const int64_t kv_head = head / (op.heads / op.kv_heads);
  const float* q = op.q.row<float>(s.first_row + row) + head * op.head_dim;
  float* out = op.out.row<float>(s.first_row + row) + head * op.head_dim;

  std::vector<double> scores;
  double max = op.sinks ? op.sinks.as<float>()[head] : -std::numeric_limits<double>::infinity();
  for (int64_t p = first; p <= position; ++p) {
    const std::byte* k = kv_slot(op.k_cache, s.block_table, p, kv_head);
    double dot = 0;
    for (int64_t d = 0; d < op.head_dim; ++d) {
      dot += static_cast<double>(q[d]) * load_element(op.k_cache.dtype, k, d);
    }
    scores.push_back(dot * op.scale * op.scales.k);
    max = std::max(max, scores.back());
  }
  double sum = op.sinks ? std::exp(op.sinks.as<float>()[head] - max) : 0;
  std::vector<double> acc(op.head_dim);
  for (int64_t p = first; p <= position; ++p) {
    const std::byte* v = kv_slot(op.v_cache, s.block_table, p, kv_head);
    const double weight = std::exp(scores[p - first] - max);
    sum += weight;
    for (int64_t d = 0; d < op.head_dim; ++d) acc[d] += weight * load_element(op.v_cache.dtype, v, d);
  }
  for (int64_t d = 0; d < op.head_dim; ++d) out[d] = static_cast<float>(acc[d] / sum * op.scales.v);
}

}  // namespace

void paged_attention_ref(Stream& stream, const PagedAttention& op) {
  for (const AttentionSequence& s : op.batch->sequences) {
    stream.pool().parallel_for(int64_t{s.rows} * op.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) attend_row(op, s, i / op.heads, i % op.heads);
    });
  }
}

}  // namespace atom::ops::cpu
