// The reference of latent attention: keys and values of every token written out, in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/dequant.h"
#include "ops/cpu/kv_slots.h"
#include "ops/cpu/latent.h"

namespace atom::ops::cpu {
namespace {

// One head's keys and values of one sequence.
struct Expanded {
  std::vector<double> keys, values;  // [tokens, query_dim], [tokens, v_dim]
};

Expanded expand(const LatentAttention& op, const AttentionSequence& sequence, int64_t head) {
  const LatentShape& s = op.shape;
  const int64_t tokens = int64_t{sequence.context} + sequence.rows;
  Expanded out{std::vector<double>(tokens * s.query_dim()), std::vector<double>(tokens * s.v_dim)};
  const WeightPart& w = op.kv_b.parts[0];
  std::vector<float> row(s.kv_rank);
  for (int64_t r = 0; r < s.nope_dim + s.v_dim; ++r) {
    dequantize_row(w, head * (s.nope_dim + s.v_dim) + r, row.data());
    for (int64_t u = 0; u < tokens; ++u) {
      const std::byte* entry = kv_slot(op.cache, sequence.block_table, u, 0);
      double dot = 0;
      for (int64_t c = 0; c < s.kv_rank; ++c) {
        dot += static_cast<double>(row[c]) * load_element(op.cache.dtype, entry, c);
      }
      (r < s.nope_dim ? out.keys[u * s.query_dim() + r] : out.values[u * s.v_dim + r - s.nope_dim]) = dot;
    }
  }
  for (int64_t u = 0; u < tokens; ++u) {
    const std::byte* entry = kv_slot(op.cache, sequence.block_table, u, 0);
    for (int64_t d = 0; d < s.rope_dim; ++d) {
      out.keys[u * s.query_dim() + s.nope_dim + d] = load_element(op.cache.dtype, entry, s.kv_rank + d);
    }
  }
  return out;
}

void attend_row(const LatentAttention& op, const Expanded& kv, int64_t position, int64_t t, int64_t head) {
  const LatentShape& s = op.shape;
  const bool sparse = op.selected && position >= op.selected.dim(1);
  const int64_t count = sparse ? op.selected.dim(1) : position + 1;
  auto key = [&](int64_t i) { return sparse ? op.selected.row<int32_t>(t)[i] : i; };
  const float* q = op.q.row<float>(t) + head * s.query_dim();
  std::vector<double> scores(count);
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < count; ++i) {
    double dot = 0;
    for (int64_t d = 0; d < s.query_dim(); ++d) dot += q[d] * kv.keys[key(i) * s.query_dim() + d];
    scores[i] = dot * op.scale;
    max = std::max(max, scores[i]);
  }
  double sum = 0;
  std::vector<double> acc(s.v_dim);
  for (int64_t i = 0; i < count; ++i) {
    const double weight = std::exp(scores[i] - max);
    sum += weight;
    for (int64_t d = 0; d < s.v_dim; ++d) acc[d] += weight * kv.values[key(i) * s.v_dim + d];
  }
  float* out = op.out.row<float>(t) + head * s.v_dim;
  for (int64_t d = 0; d < s.v_dim; ++d) out[d] = static_cast<float>(acc[d] / sum);
}

}  // namespace

void latent_attention_ref(Stream& stream, const LatentAttention& op) {
  for (const AttentionSequence& s : op.batch->sequences) {
    stream.pool().parallel_for(op.shape.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        const Expanded kv = expand(op, s, h);
        for (int64_t i = 0; i < s.rows; ++i) attend_row(op, kv, int64_t{s.context} + i, s.first_row + i, h);
      }
    });
  }
}

}  // namespace atom::ops::cpu
