// Mixtral: Mistral with eight experts, two per token.
// https://huggingface.co/mistralai/Mixtral-8x7B-v0.1 (config.json, model.safetensors.index.json)
#include "models/registry.h"
#include "nn/attention.h"
#include "nn/layer_windows.h"
#include "nn/moe.h"
#include "nn/rope.h"

namespace atom {
namespace {

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
        eps(read_norm_eps(c, 1e-5)),
        tied(c.boolean_or("tie_word_embeddings", false)) {
    const int64_t heads = c.integer("num_attention_heads", 1);
    const int64_t head_dim = read_head_dim(c);
    attention = {.heads = heads,
                 .kv_heads = c.integer_or("num_key_value_heads", 8, 1),
                 .head_dim = head_dim,
                 .rope = nn::rope_parameters(parse_rope(c, head_dim, {.theta = 1e6})),
                 .window = read_window(c, 0)};  // of every layer; usually null
    const std::string_view experts = c.spelling({"num_local_experts", "num_experts"});
    moe.router = {.experts = c.integer_or(experts, 8, 1, nn::kMaxExperts),
                  .top_k = c.integer_or("num_experts_per_tok", 2, 1),
                  .score = nn::RouterScore::softmax_chosen};
    moe.experts = {
        .inter = c.integer_or("intermediate_size", 14336, 1), .gate = "w1", .up = "w3", .down = "w2"};
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

std::unique_ptr<nn::Model> make_mixtral(Scope s, const ConfigReader& c) {
  return std::make_unique<nn::CausalLM<Layer, Config>>(std::move(s), Config(c));
}

}  // namespace atom
