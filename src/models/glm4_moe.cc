// GLM-4.5 to 4.7: grouped-query attention with half-width rope; sigmoid routing with a correction bias and a
// shared expert; the first layers are dense.
// https://huggingface.co/zai-org/GLM-4.5-Air (config.json, model.safetensors.index.json)
#include "models/registry.h"
#include "nn/attention.h"
#include "nn/layer_windows.h"
#include "nn/moe.h"
#include "nn/mtp.h"
#include "nn/rope.h"

namespace atom {
namespace {

struct Config {
  int64_t layers, hidden, inter, vocab, dense_layers;
  nn::AttentionConfig attention;
  nn::MoeConfig moe;
  float eps;
  bool tied;
  std::optional<nn::DrafterConfig> drafter;

  Config(const Scope& s, const ConfigReader& c)
      : layers(read_layers(c)),
        hidden(c.integer("hidden_size", 1)),
        inter(c.integer_or("intermediate_size", 10944, 1)),
        vocab(c.integer("vocab_size", 1)),
        dense_layers(c.integer_or("first_k_dense_replace", 1)),
        eps(read_norm_eps(c, 1e-5)),
        tied(c.boolean_or("tie_word_embeddings", false)),
        drafter(nn::nextn_drafter(s, c, layers)) {
    const int64_t head_dim = read_head_dim(c);
    const RopeDefaults rope{.theta = 10000.0, .partial_rotary_factor = 0.5};
    attention = {.heads = c.integer("num_attention_heads", 1),
                 .kv_heads = c.integer_or("num_key_value_heads", 8, 1),
                 .head_dim = head_dim,
                 .rope = nn::rope_parameters(parse_rope(c, head_dim, rope)),
                 .qkv_bias = c.boolean_or("attention_bias", false)};
    if (c.boolean_or("use_qk_norm", false)) attention.qk_norm_eps = eps;
    const std::string_view experts = c.spelling({"n_routed_experts", "num_local_experts"});
    moe.router = {.experts = c.integer_or(experts, 128, 1, nn::kMaxExperts),
                  .top_k = c.integer_or("num_experts_per_tok", 8, 1),
                  .score = nn::RouterScore::sigmoid,
                  .renormalize = c.boolean_or("norm_topk_prob", true),
                  .scale = static_cast<float>(c.number_or("routed_scaling_factor", 1)),
                  .groups = c.integer_or("n_group", 1, 1),
                  .top_groups = c.integer_or("topk_group", 1, 1),
                  .correction = "gate.e_score_correction_bias"};
    moe.experts.inter = c.integer_or("moe_intermediate_size", 1408, 1);
    moe.shared = {.inter = moe.experts.inter * c.integer_or("n_shared_experts", 1, 1)};
    nn::require_silu(c);
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
        mlp(s / "mlp", c.hidden, index >= c.dense_layers ? &c.moe : nullptr, c.inter) {}

  void operator()(Ctx& c, nn::Residual& h) const {
    h.apply(c, attention_norm, attention);
    h.apply(c, mlp_norm, mlp);
  }
};

}  // namespace

std::unique_ptr<nn::Model> make_glm4_moe(Scope s, const ConfigReader& c) {
  const Config config(s, c);
  return std::make_unique<nn::CausalLM<Layer, Config>>(std::move(s), config);
}

}  // namespace atom
