// Llama 2 and 3, Mistral and what is shaped like them.
// https://huggingface.co/meta-llama/Llama-3.1-8B (config.json, model.safetensors.index.json)
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
  bool tied, mlp_bias;

  explicit Config(const ConfigReader& c)
      : layers(read_layers(c)),
        hidden(c.integer("hidden_size", 1)),
        inter(c.integer("intermediate_size", 1)),
        vocab(c.integer("vocab_size", 1)),
        eps(read_norm_eps(c, 1e-6)),
        tied(c.boolean_or("tie_word_embeddings", false)),
        mlp_bias(c.boolean_or("mlp_bias", false)) {
    const bool mistral = c.texts("architectures").front() == "MistralForCausalLM";
    const int64_t heads = c.integer("num_attention_heads", 1);
    const int64_t head_dim = read_head_dim(c);
    const bool bias = c.boolean_or(c.spelling({"attention_bias", "bias"}), false);
    attention = {.heads = heads,
                 .kv_heads = c.integer_or("num_key_value_heads", mistral ? 8 : heads, 1),
                 .head_dim = head_dim,
                 .rope = nn::rope_parameters(parse_rope(c, head_dim, {.theta = 10000.0})),
                 .rope_interleaved = c.boolean_or("rope_interleaved", false),
                 .qkv_bias = bias,
                 .o_bias = bias};
    // Llama-shaped models have a window only where layer_types says so.
    windows = nn::layer_windows(c, layers, mistral ? read_window(c, 4096) : 0);
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
        mlp(s / "mlp", c.hidden, c.inter, c.mlp_bias) {}

  void operator()(Ctx& c, nn::Residual& h) const {
    h.apply(c, attention_norm, attention);
    h.apply(c, mlp_norm, mlp);
  }
};

}  // namespace

std::unique_ptr<nn::Model> make_llama(Scope s, const ConfigReader& c) {
  return std::make_unique<nn::CausalLM<Layer, Config>>(std::move(s), Config(c));
}

}  // namespace atom
