#include "nn/gated_attention.h"

#include <cmath>

#include "nn/head_rows.h"
#include "ops/attend.h"

namespace atom::nn {
namespace {

// q_proj stores [q | gate] per head; here all q come first and all gates last.
std::vector<Piece> qkv_gate_pieces(const Scope& s, const GatedAttentionConfig& a, int64_t in,
                                   const char* tensor) {
  const std::string q_proj = (s / "q_proj").join(tensor);
  const Range heads = local_heads(s, a.heads, q_proj);
  const int64_t dim = a.head_dim;
  const GroupedRows packed{q_proj, in, a.heads, 2 * dim};
  const int64_t kv = a.kv_heads * dim;
  std::vector<Piece> pieces;
  packed.append(pieces, heads, 0, dim);
  pieces.push_back({{{(s / "k_proj").join(tensor)}}, kv, in, Shard::by_rows(Axis::attn, dim)});
  pieces.push_back({{{(s / "v_proj").join(tensor)}}, kv, in, Shard::by_rows(Axis::attn, dim)});
  packed.append(pieces, heads, dim, dim);
  return pieces;
}

}  // namespace

GatedAttention::GatedAttention(Scope s, int64_t hidden, const GatedAttentionConfig& a)
    : heads_(local_heads(s, checked_heads(a.heads, a.kv_heads, a.head_dim), s.join("q_proj.weight")).count),
      kv_heads_(s.local(a.kv_heads, Shard::by_rows(Axis::attn), s.join("k_proj.weight")).count),
      head_dim_(a.head_dim),
      rotary_dim_(a.rope.rotary_dim),
      rope_(s.rope(a.rope)),
      cache_(s.cache({kv_heads_, a.head_dim, a.head_dim})),
      qkv_gate_(s.matrix("q_proj|k_proj|v_proj.weight", qkv_gate_pieces(s, a, hidden, "weight"))),
      q_norm_(s / "q_norm", a.head_dim, a.norm_eps, /*weight_offset=*/1),
      k_norm_(s / "k_norm", a.head_dim, a.norm_eps, /*weight_offset=*/1),
      o_(s / "o_proj", Axis::attn, a.heads * a.head_dim, hidden, a.head_dim, a.bias) {
  s.needs<ops::SigmoidGate>("gated attention");
  if (a.bias) bias_ = s.vector("q_proj|k_proj|v_proj.bias", qkv_gate_pieces(s, a, 1, "bias"));
}

Partial GatedAttention::operator()(Ctx& c, Tensor x) const {
  Tensor rows = c.alloc(x.dim(0), qkv_gate_.rows());
  ops::run(c.stream, ops::Linear{rows, x, qkv_gate_, bias_, c.precision});
  const int64_t qkv_width = (heads_ + 2 * kv_heads_) * head_dim_;
  const Tensor qkv = rows.cols(0, qkv_width), gate = rows.cols(qkv_width, heads_ * head_dim_);

  const KvPool& kv = c.cache(cache_);
  const ops::AttentionBatch& batch = c.attention(kv);
  const int32_t heads = static_cast<int32_t>(heads_), kv_heads = static_cast<int32_t>(kv_heads_),
                head_dim = static_cast<int32_t>(head_dim_);
  Tensor out = c.alloc(x.dim(0), heads_ * head_dim_);
  ops::run(c.stream, ops::Attend{.store = {.qkv = qkv,
                                           .k_cache = kv.k,
                                           .v_cache = kv.v,
                                           .q_norm = q_norm_.weight(),
                                           .k_norm = k_norm_.weight(),
                                           .batch = &batch,
                                           .rope = c.rope(rope_),
                                           .heads = heads,
                                           .kv_heads = kv_heads,
                                           .head_dim = head_dim,
                                           .rotary_dim = rotary_dim_,
                                           .norm_eps = q_norm_.eps(),
                                           .norm_weight_offset = q_norm_.weight_offset(),
                                           .scales = kv.scales},
                                 .attention = {.out = out,
                                               .q = qkv,
                                               .k_cache = kv.k,
                                               .v_cache = kv.v,
                                               .batch = &batch,
                                               .heads = heads,
                                               .kv_heads = kv_heads,
                                               .head_dim = head_dim,
                                               .scale = 1.0f / std::sqrt(static_cast<float>(head_dim_)),
                                               .scales = kv.scales},
                                 .gate = gate});
  return o_(c, out);
}

}  // namespace atom::nn
