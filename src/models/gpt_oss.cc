// GPT-OSS: alternating window and full attention with sinks; experts with biases and a clamped activation.
// https://huggingface.co/openai/gpt-oss-20b (config.json, model.safetensors.index.json)
#include "models/registry.h"
#include "nn/attention.h"
#include "nn/layer_windows.h"
#include "nn/moe.h"
#include "nn/rope.h"

namespace atom {
namespace {

RopeConfig read_rope(const ConfigReader& c, int64_t head_dim) {
  RopeConfig rope = parse_rope(c, head_dim, {.theta = 150000.0});
  if (c.has("rope_scaling") || c.has("rope_parameters")) return rope;
  rope.type = RopeType::yarn;  // what the architecture assumes
  rope.factor = 32;
  rope.original_max_position_embeddings = 4096;
  rope.truncate = false;
  return rope;
}

struct Config {
  int64_t layers, hidden, vocab;
  nn::AttentionConfig attention;
  std::vector<int64_t> windows;  // per layer; 0: full attention
  nn::MoeConfig moe;
  float eps;
  bool tied;

  explicit Config(const ConfigReader& c)
      : layers(read_layers(c)),
        hidden(c.integer("hidden_size", 1)),
        vocab(c.integer("vocab_size", 1)),
        eps(read_norm_eps(c, 1e-5)),
        tied(c.boolean_or("tie_word_embeddings", false)) {
    const int64_t head_dim = c.integer_or("head_dim", 64, 1);
    const bool bias = c.boolean_or("attention_bias", true);
    attention = {.heads = c.integer("num_attention_heads", 1),
                 .kv_heads = c.integer_or("num_key_value_heads", 8, 1),
                 .head_dim = head_dim,
                 .rope = nn::rope_parameters(read_rope(c, head_dim)),
                 .qkv_bias = bias,
                 .o_bias = bias,
                 .sinks = true};
    windows = nn::layer_windows(c, layers, 0);
    if (!c.has("layer_types")) {  // every other layer slides, beginning with the first
      const int64_t window = read_window(c, 128);
      for (int64_t i = 0; i < layers; i += 2) windows[i] = window;
    }
    const std::string_view experts = c.spelling({"num_local_experts", "num_experts"});
    moe.router = {.experts = c.integer_or(experts, 128, 1, nn::kMaxExperts),
                  .top_k = c.integer_or(c.spelling({"num_experts_per_tok", "experts_per_token"}), 4, 1),
                  .score = nn::RouterScore::softmax_chosen,
                  .name = "router",
                  .bias = true};
    moe.experts = {.inter = c.integer("intermediate_size", 1),
                   .fused = nn::FusedLayout::in_out_interleaved,
                   .bias = true,
                   .activation = nn::ExpertActivation::clamped_swiglu,
                   .limit = static_cast<float>(c.number_or("swiglu_limit", 7, 0)),
                   .alpha = static_cast<float>(c.number_or("swiglu_alpha", 1.702, 0))};
    nn::require_silu(c);
  }
};

struct Layer {
  nn::RmsNorm attention_norm, moe_norm;
  nn::SelfAttention attention;
  nn::Moe moe;

  Layer(Scope s, const Config& c, int64_t index)
      : attention_norm(s / "input_layernorm", c.hidden, c.eps),
        moe_norm(s / "post_attention_layernorm", c.hidden, c.eps),
        attention(s / "self_attn", c.hidden, c.attention.with_window(c.windows[index])),
        moe(s / "mlp", c.hidden, c.moe) {}

  void operator()(Ctx& c, nn::Residual& h) const {
    h.apply(c, attention_norm, attention);
    h.apply(c, moe_norm, moe);
  }
};

}  // namespace

std::unique_ptr<nn::Model> make_gpt_oss(Scope s, const ConfigReader& c) {
  return std::make_unique<nn::CausalLM<Layer, Config>>(std::move(s), Config(c));
}

}  // namespace atom
