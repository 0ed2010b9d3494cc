// The indexer: keys stored row by row; scores of a few rows at a time, their contexts cut into tiles that are
// dealt to the team, then each row's best positions.
#include "ops/cpu/index_select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/dequant.h"
#include "ops/cpu/kv_slots.h"
#include "ops/cpu/latent.h"

namespace atom::ops::cpu {
namespace {

constexpr int64_t kKeyTile = 128;          // keys widened at a time: 64 KiB of 128 lanes
constexpr int64_t kScoreFloats = 4 << 20;  // of the rows that are at work together

void layer_norm(float* out, const float* x, const float* weight, const float* bias, int64_t n, float eps) {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < n; ++i) mean += x[i];
  mean /= static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean);
  const double scale = 1 / std::sqrt(variance / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>((x[i] - mean) * scale * weight[i] + bias[i]);
}

// Floats as integers of the same order.
uint32_t ordered(float x) {
  const auto bits = std::bit_cast<uint32_t>(x + 0.0f);  // one zero
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

struct Row {
  const AttentionSequence* sequence;
  int64_t position, t;
};

// Scores of keys [begin, end) of a row's context.
void score_tile(const IndexSelect& op, const IndexKernels& kernels, const Row& row, int64_t begin,
                int64_t end, float* scores) {
  thread_local std::vector<float> keys;
  const int64_t dim = op.shape.head_dim;
  if (static_cast<int64_t>(keys.size()) < kKeyTile * dim) keys.resize(kKeyTile * dim);
  const int64_t block_size = op.batch->block_size;
  for (int64_t u = begin; u < end;) {
    const int64_t n = std::min(end - u, block_size - u % block_size);  // contiguous in its block
    const std::byte* from = kv_slot(op.cache, row.sequence->block_table, u, 0);
    kernels.widen(keys.data() + (u - begin) * dim, kv_type(op.cache.dtype), from, n * dim);
    u += n;
  }
  kernels.scores(scores + begin, op.q.row<float>(row.t), op.weights.row<float>(row.t), op.shape.heads, dim,
                 keys.data(), end - begin);
  if (!op.scales) return;
  for (int64_t u = begin; u < end; ++u) {
    scores[u] *= op.scales.row<float>(row.sequence->block_table[u / block_size])[u % block_size];
  }
}

// Writes a key's codes and returns its scale.
float store_scaled(std::byte* out, std::span<const float> key) {
  float largest = 0;
  bool finite = true;
  for (const float x : key) {
    largest = std::max(largest, std::abs(x));
    finite = finite && std::isfinite(x);
  }
  const float scale = finite ? e8m0_to_f32(e8m0_scale(largest)) : std::numeric_limits<float>::quiet_NaN();
  for (size_t d = 0; d < key.size(); ++d) out[d] = std::byte{f32_to_f8e4m3(key[d] / scale)};
  return scale;
}

void scores_ref(float* scores, const float* q, const float* weights, int64_t heads, int64_t dim,
                const float* keys, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    double score = 0;
    for (int64_t h = 0; h < heads; ++h) {
      double dot = 0;
      for (int64_t d = 0; d < dim; ++d) dot += static_cast<double>(q[h * dim + d]) * keys[i * dim + d];
      score += weights[h] * std::max(0.0, dot);
    }
    scores[i] = static_cast<float>(score);
  }
}

void widen_ref(float* out, KvType type, const void* stored, int64_t n) {
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f8e4m3};
  dequantize_row(kTypes[static_cast<int>(type)], stored, out, n);
}

}  // namespace

const IndexKernels kIndexRef = {scores_ref, widen_ref};

void best_positions(std::span<const float> scores, std::span<int32_t> best) {
  CHECK(!best.empty() && best.size() <= scores.size(), "{} of {}", best.size(), scores.size());
  thread_local std::vector<uint32_t> order;
  order.clear();
  for (const float score : scores) order.push_back(ordered(score));
  const auto kth = order.begin() + static_cast<int64_t>(best.size()) - 1;
  std::nth_element(order.begin(), kth, order.end(), std::greater<>());
  const uint32_t least = *kth;
  int64_t ties = std::count(order.begin(), kth + 1, least);  // how many of the kth score are chosen
  size_t found = 0;
  for (size_t u = 0; u < scores.size() && found < best.size(); ++u) {
    const uint32_t score = ordered(scores[u]);
    if (score > least || (score == least && ties-- > 0)) best[found++] = static_cast<int32_t>(u);
  }
}

void index_store(Stream& stream, const IndexStore& op) {
  const IndexShape& s = op.shape;
  const int64_t grain = std::max<int64_t>(1, 16384 / op.q.dim(1));
  const KvType type = kv_type(op.cache.dtype);
  stream.pool().parallel_for(op.q.dim(0), grain, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> key;
    if (static_cast<int32_t>(key.size()) < s.head_dim) key.resize(s.head_dim);
    HeadTransform rotate{
        .head_dim = s.rope_dim, .rotary_dim = s.rope_dim, .interleaved = op.rope_interleaved};
    for_rows(*op.batch, begin, end, [&](const AttentionSequence& sequence, int64_t row, int64_t t) {
      rotate.cos = op.rope.cos.row<float>(t);
      rotate.sin = op.rope.sin.row<float>(t);
      for (int64_t h = 0; h < s.heads; ++h) {
        float* q = op.q.row<float>(t) + h * s.head_dim;
        transform_head_ref(q, q, rotate);
      }
      layer_norm(key.data(), op.k.row<float>(t), op.norm_weight.as<float>(), op.norm_bias.as<float>(),
                 s.head_dim, op.norm_eps);
      transform_head_ref(key.data(), key.data(), rotate);
      const int64_t position = sequence.context + row;
      std::byte* slot = kv_slot(op.cache, sequence.block_table, position, 0);
      if (!op.scales) return store_kv_ref(type, slot, key.data(), s.head_dim);
      const int64_t block_size = op.batch->block_size;
      op.scales.row<float>(sequence.block_table[position / block_size])[position % block_size] =
          store_scaled(slot, {key.data(), static_cast<size_t>(s.head_dim)});
    });
  });
}

void index_select(Stream& stream, const IndexSelect& op, const IndexKernels& kernels) {
  thread_local std::vector<Row> rows;
  thread_local std::vector<float> scores;
  rows.clear();
  const int64_t k = op.out.dim(1);
  for_rows(*op.batch, 0, op.q.dim(0), [&](const AttentionSequence& s, int64_t row, int64_t t) {
    if (s.context + row >= k) rows.push_back({&s, s.context + row, t});
  });
  for (size_t first = 0, count = 0; first < rows.size(); first += count) {
    int64_t longest = 0;
    for (count = 0; first + count < rows.size(); ++count) {
      const int64_t with = std::max(longest, rows[first + count].position + 1);
      if (count > 0 && with * static_cast<int64_t>(count + 1) > kScoreFloats) break;
      longest = with;
    }
    if (static_cast<int64_t>(scores.size()) < longest * static_cast<int64_t>(count))
      scores.resize(longest * count);
    const Row* chosen = rows.data() + first;
    float* const memory = scores.data();
    const int64_t tiles = (longest + kKeyTile - 1) / kKeyTile;
    stream.pool().parallel_for(static_cast<int64_t>(count) * tiles, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Row& row = chosen[i / tiles];
        const int64_t from = i % tiles * kKeyTile, to = std::min(from + kKeyTile, row.position + 1);
        if (from < to) score_tile(op, kernels, row, from, to, memory + i / tiles * longest);
      }
    });
    stream.pool().parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        best_positions({memory + i * longest, static_cast<size_t>(chosen[i].position) + 1},
                       {op.out.row<int32_t>(chosen[i].t), static_cast<size_t>(k)});
      }
    });
  }
}

}  // namespace atom::ops::cpu
