// Norm, rope and cache store: rows dealt to the team, each row's heads one after the other while they are in
// the cache; and the reference of one head.
#include "ops/cpu/rope_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/kv_slots.h"

namespace atom::ops::cpu {
namespace {

void store_row(const QkNormRopeStore& op, const AttentionSequence& s, int64_t row, TransformHead transform,
               StoreKv store) {
  const int64_t t = s.first_row + row, position = s.context + row;
  HeadTransform head{nullptr,       nullptr,
                     nullptr,       op.head_dim,
                     op.rotary_dim, op.rope_interleaved,
                     op.norm_eps,   op.norm_weight_offset};
  if (op.rope.cos) {
    head.cos = op.rope.cos.row<float>(t);
    head.sin = op.rope.sin.row<float>(t);
  }
  float* x = op.qkv.row<float>(t);
  head.norm = op.q_norm.as<float>();
  if (head.norm != nullptr || head.cos != nullptr) {
    for (int32_t h = 0; h < op.heads; ++h) transform(x + h * op.head_dim, x + h * op.head_dim, head);
  }
  const float* k = x + int64_t{op.heads} * op.head_dim;
  const float* v = k + int64_t{op.kv_heads} * op.head_dim;
  head.norm = op.k_norm.as<float>();
  const KvType type = kv_type(op.k_cache.dtype);
  for (int32_t h = 0; h < op.kv_heads; ++h, k += op.head_dim, v += op.head_dim) {
    float rotated[kMaxHeadDim];
    const bool changed = head.norm != nullptr || head.cos != nullptr;
    if (changed) transform(rotated, k, head);
    const auto put = [&](const Tensor& cache, const float* x, float scale) {
      float scaled[kMaxHeadDim];
      if (scale != 1) {
        for (int32_t d = 0; d < op.head_dim; ++d) scaled[d] = x[d] * (1 / scale);
        x = scaled;
      }
      store(type, kv_slot(cache, s.block_table, position, h), x, op.head_dim);
    };
    put(op.k_cache, changed ? rotated : k, op.scales.k);
    put(op.v_cache, v, op.scales.v);
  }
}

}  // namespace

void qk_norm_rope_store(Stream& stream, const QkNormRopeStore& op, TransformHead transform, StoreKv store) {
  // At least 16 K floats for one member, so that waking the team pays.
  const int64_t grain = std::max<int64_t>(1, 16384 / op.qkv.dim(1));
  const auto sequences = op.batch->sequences;
  stream.pool().parallel_for(op.qkv.dim(0), grain, [&](int64_t begin, int64_t end) {
    auto s = std::upper_bound(sequences.begin(), sequences.end(), begin,
                              [](int64_t row, const AttentionSequence& s) { return row < s.first_row; }) -
             1;
    for (int64_t t = begin; t < end; ++t) {
      while (t >= int64_t{s->first_row} + s->rows) ++s;
      store_row(op, *s, t - s->first_row, transform, store);
    }
  });
}

void transform_head_ref(float* out, const float* in, const HeadTransform& head) {
  double scale = 1;
  if (head.norm != nullptr) {
    double squares = 0;
    for (int32_t d = 0; d < head.head_dim; ++d) squares += static_cast<double>(in[d]) * in[d];
    scale = 1 / std::sqrt(squares / head.head_dim + head.eps);
  }
  for (int32_t d = 0; d < head.head_dim; ++d) {
    const double weight = head.norm == nullptr ? 1 : static_cast<double>(head.weight_offset) + head.norm[d];
    out[d] = static_cast<float>(in[d] * scale * weight);
  }
  if (head.cos == nullptr) return;
  const int32_t half = head.rotary_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    float& a = out[head.interleaved ? 2 * i : i];
    float& b = out[head.interleaved ? 2 * i + 1 : i + half];
    const double x = a, y = b, cos = head.cos[i], sin = head.sin[i];
    a = static_cast<float>(x * cos - y * sin);
    b = static_cast<float>(y * cos + x * sin);
  }
}

void store_kv_ref(KvType type, void* out, const float* in, int64_t n) {
  switch (type) {
    case KvType::f32:
      std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
      return;
    case KvType::bf16:
      for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(out)[i] = f32_to_bf16(in[i]);
      return;
    case KvType::f16:
      for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(out)[i] = f32_to_f16(in[i]);
      return;
    case KvType::f8e4m3:
      for (int64_t i = 0; i < n; ++i) static_cast<uint8_t*>(out)[i] = f32_to_f8e4m3(in[i]);
      return;
  }
}

}  // namespace atom::ops::cpu
