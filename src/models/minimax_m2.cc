// MiniMax-M2: grouped-query attention with a norm over all query heads and one over all key heads, partial
// rope; sigmoid routing with a correction bias in every layer. https://huggingface.co/MiniMaxAI/MiniMax-M2.5
// (config.json, model.safetensors.index.json)
#include "models/registry.h"
#include "nn/attention.h"
#include "nn/layer_windows.h"
#include "nn/moe.h"
#include "nn/rope.h"

namespace atom {
namespace {

// Keys of the published configs that could ask for another model.
void require_published_kind(const ConfigReader& c) {
  const auto require_text = [&](std::string_view key, std::string_view value) {
    if (c.text_or(key, value) != value) throw c.error(key, fmt::format("only {} is supported", value));
  };
  const auto require_true = [&](std::string_view key) {
    if (!c.boolean_or(key, true)) throw c.error(key, "only true is supported");
  };
  require_text("scoring_func", "sigmoid");
  require_text("qk_norm_type", "per_layer");
  require_true("use_qk_norm");
  require_true("use_routing_bias");
  if (c.integer_or("shared_intermediate_size", 0) != 0)
    throw c.error("shared_intermediate_size", "a shared expert is not supported");
  for (const int64_t type : c.integers("attn_type_list")) {
    if (type != 1)
      throw c.error("attn_type_list", fmt::format("{}: only 1, full attention, is supported", type));
  }
}

struct Config {
  int64_t layers, hidden, vocab;
  nn::AttentionConfig attention;
  nn::MoeConfig moe;
  float eps;
  bool tied;

  explicit Config(const ConfigReader& c)
      : layers(read_layers(c)),
        hidden(c.integer("hidden_size", 1)),
        vocab(c.integer("vocab_size", 1)),
        eps(read_norm_eps(c, 1e-6)),
        tied(c.boolean_or("tie_word_embeddings", false)) {
    require_published_kind(c);
    const int64_t head_dim = c.integer_or("head_dim", 128, 1);
    attention = {.heads = c.integer("num_attention_heads", 1),
                 .kv_heads = c.integer_or("num_key_value_heads", 8, 1),
                 .head_dim = head_dim,
                 .rope = nn::rope_parameters(parse_rope(c, head_dim, {.theta = 5e6})),
                 .qk_norm_eps = eps,
                 .qk_norm_whole = true};
    const std::string_view experts = c.spelling({"num_local_experts", "num_experts"});
    moe.router = {.experts = c.integer_or(experts, 256, 1, nn::kMaxExperts),
                  .top_k = c.integer_or("num_experts_per_tok", 8, 1),
                  .score = nn::RouterScore::sigmoid,
                  .renormalize = true,
                  .correction = "e_score_correction_bias"};
    moe.experts = {
        .inter = c.integer_or("intermediate_size", 1536, 1), .gate = "w1", .up = "w3", .down = "w2"};
    nn::require_silu(c);
  }
};

struct Layer {
  nn::RmsNorm attention_norm, moe_norm;
  nn::SelfAttention attention;
  nn::Moe moe;

  Layer(Scope s, const Config& c, int64_t)
      : attention_norm(s / "input_layernorm", c.hidden, c.eps),
        moe_norm(s / "post_attention_layernorm", c.hidden, c.eps),
        attention(s / "self_attn", c.hidden, c.attention),
        moe(s / "block_sparse_moe", c.hidden, c.moe) {}

  void operator()(Ctx& c, nn::Residual& h) const {
    h.apply(c, attention_norm, attention);
    h.apply(c, moe_norm, moe);
  }
};

}  // namespace

std::unique_ptr<nn::Model> make_minimax_m2(Scope s, const ConfigReader& c) {
  return std::make_unique<nn::CausalLM<Layer, Config>>(std::move(s), Config(c));
}

}  // namespace atom
