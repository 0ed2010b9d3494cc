#include "nn/attention.h"

#include <cmath>

#include "nn/head_rows.h"
#include "ops/attend.h"
#include "ops/spread_norm.h"

namespace atom::nn {

WholeNorm::WholeNorm(Scope s, int64_t heads, int64_t head_dim, float eps)
    : lanes_(heads * head_dim), eps_(eps), axis_(&s.axis(Axis::attn)) {
  const Shard shard = Shard::by_rows(Axis::attn, head_dim);
  const std::string name = s.join("weight");
  weight_ = s.vector("weight", {Piece{{{name}}, lanes_, 1, shard}});
  s.needs<ops::SpreadRmsNorm>("a norm over all heads");
  copies_ = static_cast<int32_t>(s.local(lanes_, shard, name).count * axis_->size() / lanes_);
}

void WholeNorm::operator()(Ctx& c, Tensor x) const {
  ops::run(c.stream, ops::SpreadRmsNorm{x, weight_, lanes_, copies_, eps_, axis_});
}

SelfAttention::SelfAttention(Scope s, int64_t hidden, const AttentionConfig& a)
    : heads_(s.local(checked_heads(a.heads, a.kv_heads, a.head_dim), Shard::by_rows(Axis::attn),
                     s.join("q_proj.weight"))
                 .count),
      kv_heads_(s.local(a.kv_heads, Shard::by_rows(Axis::attn), s.join("k_proj.weight")).count),
      head_dim_(a.head_dim),
      window_(a.window),
      rope_interleaved_(a.rope_interleaved),
      cache_(s.cache({kv_heads_, a.head_dim, a.head_dim, a.window})),
      qkv_(s, Axis::attn, hidden,
           {{"q_proj", a.heads * a.head_dim, a.head_dim},
            {"k_proj", a.kv_heads * a.head_dim, a.head_dim},
            {"v_proj", a.kv_heads * a.head_dim, a.head_dim}},
           a.qkv_bias),
      o_(s / "o_proj", Axis::attn, a.heads * a.head_dim, hidden, a.head_dim, a.o_bias) {
  if (a.rope) {
    rope_ = s.rope(*a.rope);
    rotary_dim_ = a.rope->rotary_dim;
  }
  if (a.qk_norm_eps && a.qk_norm_whole) {
    q_whole_norm_.emplace(s / "q_norm", a.heads, a.head_dim, *a.qk_norm_eps);
    k_whole_norm_.emplace(s / "k_norm", a.kv_heads, a.head_dim, *a.qk_norm_eps);
  } else if (a.qk_norm_eps) {
    q_norm_.emplace(s / "q_norm", a.head_dim, *a.qk_norm_eps);
    k_norm_.emplace(s / "k_norm", a.head_dim, *a.qk_norm_eps);
  }
  if (a.sinks) {
    sinks_ = s.vector("sinks", {Piece{{{s.join("sinks")}}, a.heads, 1, Shard::by_rows(Axis::attn)}});
  }
}

Partial SelfAttention::operator()(Ctx& c, Tensor x) const {
  Tensor qkv = qkv_.spend(c, x);  // [tokens, (heads + 2 kv_heads) * head_dim]
  if (q_whole_norm_) {
    (*q_whole_norm_)(c, qkv.cols(0, heads_ * head_dim_));
    (*k_whole_norm_)(c, qkv.cols(heads_ * head_dim_, kv_heads_ * head_dim_));
  }
  const KvPool& kv = c.cache(cache_);
  const ops::AttentionBatch& batch = c.attention(kv);
  Tensor out = c.alloc(x.dim(0), heads_ * head_dim_);
  const int32_t heads = static_cast<int32_t>(heads_), kv_heads = static_cast<int32_t>(kv_heads_),
                head_dim = static_cast<int32_t>(head_dim_);
  ops::Attend op{.store = {.qkv = qkv,
                           .k_cache = kv.k,
                           .v_cache = kv.v,
                           .batch = &batch,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .head_dim = head_dim,
                           .rotary_dim = rotary_dim_,
                           .rope_interleaved = rope_interleaved_,
                           .scales = kv.scales},
                 .attention = {.out = out,
                               .q = qkv,
                               .k_cache = kv.k,
                               .v_cache = kv.v,
                               .sinks = sinks_,
                               .batch = &batch,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .head_dim = head_dim,
                               .window = static_cast<int32_t>(window_),
                               .scale = 1.0f / std::sqrt(static_cast<float>(head_dim_)),
                               .scales = kv.scales}};
  if (q_norm_) {
    op.store.q_norm = q_norm_->weight();
    op.store.k_norm = k_norm_->weight();
    op.store.norm_eps = q_norm_->eps();
    op.store.norm_weight_offset = q_norm_->weight_offset();
  }
  if (rope_) op.store.rope = c.rope(*rope_);
  ops::run(c.stream, op);
  return o_(c, out);
}

}  // namespace atom::nn
