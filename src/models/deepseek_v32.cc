// DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose attention visits only the positions that an indexer selects. GLM
// rotates the indexer in interleaved pairs, and from 5.2 on most of its layers share the selection of one
// before. https://huggingface.co/deepseek-ai/DeepSeek-V3.2, https://huggingface.co/zai-org/GLM-5.2
// (config.json, model.safetensors.index.json)
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
  nn::IndexerConfig indexer;
  std::vector<bool> sparse;  // per layer: experts instead of a dense block
  std::optional<nn::MoeConfig> moe;
  float eps;
  bool tied;
  std::optional<nn::DrafterConfig> drafter;

  // What the two architectures assume where a config says nothing.
  struct Defaults {
    double eps;
    bool indexer_interleaved;
  };

  Config(const Scope& s, const ConfigReader& c, const Defaults& defaults)
      : layers(read_layers(c)),
        hidden(c.integer("hidden_size", 1)),
        inter(c.integer("intermediate_size", 1)),
        vocab(c.integer("vocab_size", 1)),
        attention(nn::read_latent_attention(c)),
        indexer(nn::read_indexer(c, layers)),
        sparse(nn::expert_layers(c, layers)),
        eps(read_norm_eps(c, defaults.eps)),
        tied(c.boolean_or("tie_word_embeddings", false)),
        drafter(nn::nextn_drafter(s, c, layers)) {
    if (std::find(sparse.begin(), sparse.end(), true) != sparse.end()) moe = nn::read_deepseek_moe(c);
    sparse.push_back(moe.has_value());  // the drafter
    indexer.rope_interleaved = c.boolean_or("indexer_rope_interleave", defaults.indexer_interleaved);
    if (attention.q_rank == 0) throw c.error("q_lora_rank", "missing: the indexer's queries come from it");
    nn::require_silu(c);
  }
};

struct Layer {
  nn::RmsNorm attention_norm, mlp_norm;
  nn::SparseLatentAttention attention;
  nn::MoeOrMlp mlp;

  Layer(Scope s, const Config& c, int64_t index)
      : attention_norm(s / "input_layernorm", c.hidden, c.eps),
        mlp_norm(s / "post_attention_layernorm", c.hidden, c.eps),
        attention(s / "self_attn", c.hidden, c.attention, c.indexer, index),
        mlp(s / "mlp", c.hidden, c.sparse[index] ? &*c.moe : nullptr, c.inter) {}

  void operator()(Ctx& c, nn::Residual& h) const {
    h.apply(c, attention_norm, attention);
    h.apply(c, mlp_norm, mlp);
  }
};

std::unique_ptr<nn::Model> make(Scope s, const ConfigReader& c, const Config::Defaults& defaults) {
  const Config config(s, c, defaults);
  return std::make_unique<nn::CausalLM<Layer, Config>>(std::move(s), config);
}

}  // namespace

std::unique_ptr<nn::Model> make_deepseek_v32(Scope s, const ConfigReader& c) {
  return make(std::move(s), c, {.eps = 1e-6, .indexer_interleaved = false});
}

std::unique_ptr<nn::Model> make_glm_moe_dsa(Scope s, const ConfigReader& c) {
  return make(std::move(s), c, {.eps = 1e-5, .indexer_interleaved = true});
}

}  // namespace atom
