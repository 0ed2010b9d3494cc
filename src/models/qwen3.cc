// Qwen3 dense: Llama with an RMS norm on every query and key head.
// https://huggingface.co/Qwen/Qwen3-0.6B (config.json, model.safetensors)
#include "models/registry.h"
#include "nn/attention.h"
#include "nn/layer_windows.h"
#include "nn/mlp.h"
#include "nn/rope.h"

namespace atom {
namespace {

struct Config {
  int64_t layers, hidden, inter, vocab;
  nn::AttentionConfig attention;
  std::vector<int64_t> windows;  // per layer; 0: full attention
  float eps;
  bool tied;

  explicit Config(const ConfigReader& c)
      : layers(read_layers(c)),
        hidden(c.integer("hidden_size", 1)),
        inter(c.integer("intermediate_size", 1)),
        vocab(c.integer("vocab_size", 1)),
        eps(read_norm_eps(c, 1e-6)),
        tied(c.boolean_or("tie_word_embeddings", false)) {
    const int64_t heads = c.integer("num_attention_heads", 1);
    const int64_t head_dim = c.integer_or("head_dim", 128, 1);
    const bool bias = c.boolean_or("attention_bias", false);
    attention = {.heads = heads,
                 .kv_heads = c.integer_or("num_key_value_heads", 32, 1),
                 .head_dim = head_dim,
                 .rope = nn::rope_parameters(parse_rope(c, head_dim, {.theta = 10000.0})),
                 .qk_norm_eps = eps,
                 .qkv_bias = bias,
                 .o_bias = bias};
    // Without layer_types, the layers from max_window_layers on slide.
    const bool sliding = c.boolean_or("use_sliding_window", false);
    const int64_t window = sliding ? read_window(c, 4096) : 0;
    windows = nn::layer_windows(c, layers, window, c.integer_or("max_window_layers", 28));
    nn::require_silu(c);
  }
};

struct Layer {
  nn::RmsNorm attention_norm, mlp_norm;
  nn::SelfAttention attention;
  nn::GatedMlp mlp;

  Layer(Scope s, const Config& c, int64_t index)
      : attention_norm(s / "input_layernorm", c.hidden, c.eps),
        mlp_norm(s / "post_attention_layernorm", c.hidden, c.eps),
        attention(s / "self_attn", c.hidden, c.attention.with_window(c.windows[index])),
        mlp(s / "mlp", c.hidden, c.inter) {}

  void operator()(Ctx& c, nn::Residual& h) const {
    h.apply(c, attention_norm, attention);
    h.apply(c, mlp_norm, mlp);
  }
};

}  // namespace

std::unique_ptr<nn::Model> make_qwen3(Scope s, const ConfigReader& c) {
  return std::make_unique<nn::CausalLM<Layer, Config>>(std::move(s), Config(c));
}

}  // namespace atom
