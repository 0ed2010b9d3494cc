// DeepSeek-V4: attention over one latent per token that is key and value of all heads. compress_ratios says
// per layer how many tokens one kept latent stands for: 0 keeps a window of single tokens only, the small
// ratio has an indexer that chooses among the kept ones. The residual stream has hc_mult lanes, mixed before
// and after each block.
#include "models/outline.h"

namespace atom {
namespace {

constexpr int64_t kIndexedRatio = 4;

struct Shapes {
  int64_t hidden, heads, latent, q_rank, o_rank, o_groups, index_heads, index_dim, lanes;
  explicit Shapes(const ConfigReader& c)
      : hidden(c.integer("hidden_size", 1, int64_t{1} << 24)),
        heads(c.integer("num_attention_heads", 1, 65536)),
        latent(c.integer("head_dim", 1, 65536)),
        q_rank(c.integer("q_lora_rank", 1, int64_t{1} << 24)),
        o_rank(c.integer("o_lora_rank", 1, int64_t{1} << 24)),
        o_groups(c.integer("o_groups", 1, heads)),
        index_heads(c.integer("index_n_heads", 1, 65536)),
        index_dim(c.integer("index_head_dim", 1, 65536)),
        lanes(c.integer("hc_mult", 1, 64)) {}
};

// What turns `ratio` tokens into one kept vector of `width`. The small ratio blends neighbouring groups, for
// which it makes everything twice.
void compressor(const Scope& s, const Shapes& m, int64_t width, int64_t ratio) {
  const int64_t made = ratio == kIndexedRatio ? 2 * width : width;
  s.matrix("position_bias", {Piece{{{s.join("position_bias")}}, ratio, made, {}}});
  outline::weight(s, "kv_proj", made, m.hidden);
  outline::weight(s, "gate_proj", made, m.hidden);
  outline::norm(s, "kv_norm", width);
}

void attention(const Scope& s, const Shapes& m, int64_t ratio) {
  s.vector("sinks", m.heads);
  outline::weight(s, "q_a_proj", m.q_rank, m.hidden);
  outline::norm(s, "q_a_norm", m.q_rank);
  outline::weight(s, "q_b_proj", m.heads * m.latent, m.q_rank);
  outline::weight(s, "kv_proj", m.latent, m.hidden);
  outline::norm(s, "kv_norm", m.latent);
  outline::weight(s, "o_a_proj", m.o_groups * m.o_rank, m.heads * m.latent / m.o_groups);
  outline::weight(s, "o_b_proj", m.hidden, m.o_groups * m.o_rank);
  if (ratio == 0) return;
  compressor(s / "compressor", m, m.latent, ratio);
  if (ratio != kIndexedRatio) return;
  const Scope indexer = s / "compressor" / "indexer";
  compressor(indexer, m, m.index_dim, ratio);
  outline::weight(indexer, "q_b_proj", m.index_heads * m.index_dim, m.q_rank);
  outline::weight(indexer / "scorer", "weights_proj", m.index_heads, m.hidden);
}

// What mixes the stream's lanes: `weights` of them are computed from all lanes, with `scales` factors.
void lane_mixing(const Scope& s, const std::string& prefix, const Shapes& m, int64_t weights,
                 int64_t scales) {
  s.matrix(prefix + "fn", {Piece{{{s.join(prefix + "fn")}}, weights, m.lanes * m.hidden, {}}});
  s.vector(prefix + "base", weights);
  s.vector(prefix + "scale", scales);
}

}  // namespace

Outline outline_deepseek_v4(const Scope& s, const ConfigReader& c) {
  const Shapes m(c);
  const int64_t layers = read_layers(c);
  const int64_t inter = c.integer("moe_intermediate_size", 1);
  const int64_t experts = c.integer("n_routed_experts", 1, 65536);
  const int64_t chosen = c.integer("num_experts_per_tok", 1, experts);
  const int64_t shared = inter * c.integer_or("n_shared_experts", 1, 0, 64);
  const int64_t hashed = c.integer_or("num_hash_layers", 0);  // layers that route by the token's id
  const int64_t window = c.integer("sliding_window", 1, kMaxWindow);
  const std::vector<int64_t> ratios = c.integers("compress_ratios", 0, 65536);
  if (std::ssize(ratios) < layers) throw c.error("compress_ratios", "must have a value for each layer");
  outline::frame(s, c);
  lane_mixing(s / "model" / "hc_head", "hc_", m, m.lanes, 1);
  const int64_t mixing_weights =
      m.lanes * m.lanes + 2 * m.lanes;  // before and after a block, and among lanes
  Outline result;
  for (int64_t i = 0; i < layers; ++i) {
    const int64_t ratio = ratios[i];
    const Scope layer = s / "model" / "layers" / i, mlp = layer / "mlp";
    attention(layer / "self_attn", m, ratio);
    outline::weight(mlp, "gate", experts, m.hidden);
    if (i >= hashed) mlp.vector("e_score_correction_bias", experts);
    outline::experts(mlp, m.hidden, inter, experts, chosen);
    if (shared > 0) outline::gated_mlp(mlp / "shared_experts", m.hidden, shared);
    for (const char* block : {"attn_hc", "ffn_hc"}) lane_mixing(layer / block, "", m, mixing_weights, 3);
    outline::block_norms(layer, m.hidden);
    // A layer that compresses keeps its last `window` single tokens, too: a constant.
    const int64_t bytes = 2 * m.latent;
    result.windows.push_back(ratio == 0 ? window : 0);
    result.kv_per_token += ratio == 0 ? bytes : bytes / ratio;
    if (ratio == 0) result.sliding_per_token += bytes;
    if (ratio == kIndexedRatio) result.index_per_token += outline::index_key_bytes(m.index_dim) / ratio;
  }
  return result;
}

}  // namespace atom
