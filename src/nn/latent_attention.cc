#include "nn/latent_attention.h"

#include <cmath>

#include "nn/rope.h"

namespace atom::nn {
namespace {

std::vector<Output> compressed_outputs(const LatentAttentionConfig& a) {
  std::vector<Output> outputs;
  if (a.q_rank > 0) outputs.push_back({"q_a_proj", a.q_rank});
  outputs.push_back({"kv_a_proj_with_mqa", a.shape.entry_dim()});
  return outputs;
}

Matrix expansion(const Scope& s, const ops::LatentShape& shape) {
  const int64_t head_rows = shape.nope_dim + shape.v_dim;
  return s.matrix("kv_b_proj.weight", {Piece{{{s.join("kv_b_proj.weight")}},
                                             shape.heads * head_rows,
                                             shape.kv_rank,
                                             Shard::by_rows(Axis::attn, head_rows)}});
}

}  // namespace

LatentAttentionConfig read_latent_attention(const ConfigReader& c) {
  constexpr int64_t kMaxDim = 1 << 16;
  auto dim = [&](std::string_view key) { return static_cast<int32_t>(c.integer(key, 1, kMaxDim)); };
  LatentAttentionConfig a;
  a.shape = {.heads = dim("num_attention_heads"),
             .nope_dim = dim("qk_nope_head_dim"),
             .rope_dim = dim("qk_rope_head_dim"),
             .v_dim = dim("v_head_dim"),
             .kv_rank = dim("kv_lora_rank")};
  if (a.shape.rope_dim % 2 != 0) throw c.error("qk_rope_head_dim", "must be even");
  a.q_rank = c.integer_or("q_lora_rank", 0, 1, kMaxDim);
  RopeConfig rope = parse_rope(c, a.shape.rope_dim, {.theta = 10000.0});
  rope.rotary_dim = a.shape.rope_dim;  // these lanes exist to rotate; partial_rotary_factor is not about them
  a.rope = rope_parameters(rope);
  a.rope_interleaved = c.boolean_or("rope_interleave", true);
  a.bias = c.boolean_or("attention_bias", false);
  a.scale = 1 / std::sqrt(static_cast<float>(a.shape.query_dim()));
  if (rope.type != RopeType::plain && rope.factor > 1) {
    const double magnitude = 0.1 * rope.mscale_all_dim.value_or(0) * std::log(rope.factor) + 1;
    a.scale *= static_cast<float>(magnitude * magnitude);
  }
  return a;
}

LatentAttention::LatentAttention(Scope s, int64_t hidden, const LatentAttentionConfig& a, LayerCache::Fp8 fp8)
    : config_(a),
      rope_(s.rope(a.rope)),
      cache_(s.cache({.heads = 1, .key_dim = a.shape.entry_dim(), .fp8 = fp8})),
      compress_(s, Axis::none, hidden, compressed_outputs(a), a.bias),
      q_(s, Axis::attn, a.q_rank > 0 ? a.q_rank : hidden,
         {{a.q_rank > 0 ? "q_b_proj" : "q_proj", int64_t{a.shape.heads} * a.shape.query_dim(),
           a.shape.query_dim()}},
         false),
      kv_norm_(s / "kv_a_layernorm", a.shape.kv_rank, a.norm_eps),
      kv_b_(expansion(s, a.shape)),
      o_(s / "o_proj", Axis::attn, int64_t{a.shape.heads} * a.shape.v_dim, hidden, a.shape.v_dim, a.bias) {
  s.needs<ops::LatentAttention>("latent attention");
  if (a.q_rank > 0) q_norm_.emplace(s / "q_a_layernorm", a.q_rank, a.norm_eps);
  const int ranks = s.axis(Axis::attn).size();
  if (ranks > a.shape.heads) {
    throw invalid("{}: {} heads cannot be cut over {} ranks; use fewer", s.path(), a.shape.heads, ranks);
  }
  config_.shape.heads = static_cast<int32_t>(
      s.local(a.shape.heads, Shard::by_rows(Axis::attn), s.join("kv_b_proj.weight")).count);
}

LatentAttention::Compressed LatentAttention::compress(Ctx& c, Tensor x) const {
  const Tensor y = compress_(c, x);
  if (!q_norm_) return {x, y};
  const Tensor q = c.alloc(x.dim(0), config_.q_rank);
  ops::run(c.stream, ops::RmsNorm{q, y.cols(0, config_.q_rank), q_norm_->weight(), q_norm_->eps(),
                                  q_norm_->weight_offset()});
  return {q, y.cols(config_.q_rank, config_.shape.entry_dim())};
}

Partial LatentAttention::attend(Ctx& c, const Compressed& in, Tensor selected) const {
  const KvPool& pool = c.cache(cache_);
  const ops::AttentionBatch& batch = c.attention(pool);
  const Tensor q = q_(c, in.q);  // [tokens, heads * query_dim]
  ops::run(c.stream, ops::LatentStore{.q = q,
                                      .kv = in.kv,
                                      .norm = kv_norm_.weight(),
                                      .cache = pool.k,
                                      .batch = &batch,
                                      .rope = c.rope(rope_),
                                      .shape = config_.shape,
                                      .rope_interleaved = config_.rope_interleaved,
                                      .norm_eps = kv_norm_.eps()});
  const Tensor out = c.alloc(q.dim(0), int64_t{config_.shape.heads} * config_.shape.v_dim);
  ops::run(c.stream, ops::LatentAttention{.out = out,
                                          .q = q,
                                          .kv_b = kv_b_,
                                          .cache = pool.k,
                                          .selected = selected,
                                          .batch = &batch,
                                          .shape = config_.shape,
                                          .scale = config_.scale,
                                          .precision = c.precision});
  return o_(c, out);
}

Partial LatentAttention::operator()(Ctx& c, Tensor x) const { return attend(c, compress(c, x), {}); }

SparseLatentAttention::SparseLatentAttention(Scope s, int64_t hidden, const LatentAttentionConfig& a,
                                             const IndexerConfig& indexer, int64_t layer)
    : attention_(s, hidden, a, LayerCache::Fp8::plain),
      selection_(declare_selection(s, indexer, layer)),
      keeps_selection_(indexer.drafter(layer) && indexer.share_between_drafts) {
  if (!indexer.shared(layer)) indexer_.emplace(s / "indexer", hidden, a.q_rank, a.rope, indexer);
}

Partial SparseLatentAttention::operator()(Ctx& c, Tensor x) const {
  const LatentAttention::Compressed in = attention_.compress(c, x);
  const Tensor selected = c.carry(selection_);
  if (indexer_ && !(keeps_selection_ && c.draft_step > 0)) (*indexer_)(c, x, in.q, selected);
  return attention_.attend(c, in, selected);
}

}  // namespace atom::nn
