// Qwen3 with routed experts in the feed-forward block of all or some layers.
// https://huggingface.co/Qwen/Qwen3-30B-A3B (config.json, model.safetensors.index.json)
#include <algorithm>

#include "models/registry.h"
#include "nn/attention.h"
#include "nn/layer_windows.h"
#include "nn/moe.h"
#include "nn/rope.h"

namespace atom {
namespace {

struct Config {
  int64_t layers, hidden, inter, vocab;
  nn::AttentionConfig attention;
  nn::MoeConfig moe;
  int64_t sparse_step;
  std::vector<int64_t> dense_layers;
  float eps;
  bool tied;

  explicit Config(const ConfigReader& c)
      : layers(read_layers(c)),
        hidden(c.integer("hidden_size", 1)),
        inter(c.integer_or("intermediate_size", 6144, 1)),
        vocab(c.integer("vocab_size", 1)),
        sparse_step(c.integer_or("decoder_sparse_step", 1, 1)),
        dense_layers(c.integers("mlp_only_layers")),
        eps(read_norm_eps(c, 1e-6)),
        tied(c.boolean_or("tie_word_embeddings", false)) {
    const int64_t head_dim = read_head_dim(c);
    const bool bias = c.boolean_or("attention_bias", false);
    const bool sliding = c.boolean_or("use_sliding_window", false);
    attention = {.heads = c.integer("num_attention_heads", 1),
                 .kv_heads = c.integer_or("num_key_value_heads", 4, 1),
                 .head_dim = head_dim,
                 .rope = nn::rope_parameters(parse_rope(c, head_dim, {.theta = 10000.0})),
                 .window = sliding ? read_window(c, 4096) : 0,  // of every layer
                 .qk_norm_eps = eps,
                 .qkv_bias = bias,
                 .o_bias = bias};
    const std::string_view experts = c.spelling({"num_experts", "num_local_experts"});
    moe.router = {.experts = c.integer_or(experts, 128, 0, nn::kMaxExperts),
                  .top_k = c.integer_or("num_experts_per_tok", 8, 1),
                  .renormalize = c.boolean_or("norm_topk_prob", false)};
    moe.experts.inter = c.integer_or("moe_intermediate_size", 768, 1);
    nn::require_silu(c);
  }

  bool sparse(int64_t layer) const {
    const bool listed = std::find(dense_layers.begin(), dense_layers.end(), layer) != dense_layers.end();
    return !listed && moe.router.experts > 0 && (layer + 1) % sparse_step == 0;
  }
};

struct Layer {
  nn::RmsNorm attention_norm, mlp_norm;
  nn::SelfAttention attention;
  nn::MoeOrMlp mlp;

  Layer(Scope s, const Config& c, int64_t index)
      : attention_norm(s / "input_layernorm", c.hidden, c.eps),
        mlp_norm(s / "post_attention_layernorm", c.hidden, c.eps),
        attention(s / "self_attn", c.hidden, c.attention),
        mlp(s / "mlp", c.hidden, c.sparse(index) ? &c.moe : nullptr, c.inter) {}

  void operator()(Ctx& c, nn::Residual& h) const {
    h.apply(c, attention_norm, attention);
    h.apply(c, mlp_norm, mlp);
  }
};

}  // namespace

std::unique_ptr<nn::Model> make_qwen3_moe(Scope s, const ConfigReader& c) {
  return std::make_unique<nn::CausalLM<Layer, Config>>(std::move(s), Config(c));
}

}  // namespace atom
