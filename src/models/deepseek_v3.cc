// DeepSeek-V3, R1 and what is shaped like them: latent attention, dense layers first, then grouped experts.
// Kimi-K2.5 is this model under another prefix, beside a vision tower.
// https://huggingface.co/deepseek-ai/DeepSeek-V3, https://huggingface.co/moonshotai/Kimi-K2.5 (config.json,
// model.safetensors.index.json)
#include <algorithm>

#include "models/registry.h"
#include "nn/deepseek_moe.h"
#include "nn/latent_attention.h"
#include "nn/layer_windows.h"
#include "nn/mtp.h"

namespace atom {
namespace {

struct Config {
  int64_t layers, hidden, inter, vocab;
  nn::LatentAttentionConfig attention;
  std::vector<bool> sparse;  // per layer: experts instead of a dense block
  std::optional<nn::MoeConfig> moe;
  float eps;
  bool tied;
  std::optional<nn::DrafterConfig> drafter;

  Config(const Scope& s, const ConfigReader& c)
      : layers(read_layers(c)),
        hidden(c.integer("hidden_size", 1)),
        inter(c.integer("intermediate_size", 1)),
        vocab(c.integer("vocab_size", 1)),
        attention(nn::read_latent_attention(c)),
        sparse(nn::expert_layers(c, layers)),
        eps(read_norm_eps(c, 1e-6)),
        tied(c.boolean_or("tie_word_embeddings", false)),
        drafter(nn::nextn_drafter(s, c, layers)) {
    if (std::find(sparse.begin(), sparse.end(), true) != sparse.end()) moe = nn::read_deepseek_moe(c);
    sparse.push_back(moe.has_value());  // the drafter
    nn::require_silu(c);
  }
};

struct Layer {
  nn::RmsNorm attention_norm, mlp_norm;
  nn::LatentAttention attention;
  nn::MoeOrMlp mlp;

  Layer(Scope s, const Config& c, int64_t index)
      : attention_norm(s / "input_layernorm", c.hidden, c.eps),
        mlp_norm(s / "post_attention_layernorm", c.hidden, c.eps),
        attention(s / "self_attn", c.hidden, c.attention),
        mlp(s / "mlp", c.hidden, c.sparse[index] ? &*c.moe : nullptr, c.inter) {}

  void operator()(Ctx& c, nn::Residual& h) const {
    h.apply(c, attention_norm, attention);
    h.apply(c, mlp_norm, mlp);
  }
};

}  // namespace

std::unique_ptr<nn::Model> make_deepseek_v3(Scope s, const ConfigReader& c) {
  const Config config(s, c);
  return std::make_unique<nn::CausalLM<Layer, Config>>(std::move(s), config);
}

std::unique_ptr<nn::Model> make_kimi_k25(Scope s, const ConfigReader& c) {
  s.ignore("vision_tower.*", "the vision tower: text only");
  s.ignore("mm_projector.*", "the vision tower's projection: text only");
  return make_deepseek_v3(s / "language_model", c);
}

}  // namespace atom
