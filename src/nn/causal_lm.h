// The decoder stack around a model's layers: embedding, layers of this stage, final norm, head.
#pragma once
#include <memory>
#include <vector>

#include "nn/vocab.h"
#include "ops/embed.h"

namespace atom::nn {

class Model {
 public:
  virtual ~Model() = default;
  // One step on this stage. The first stage embeds the batch's tokens, a later one is given the stream of the
  // stage before (`hidden`, [tokens, hidden]). The last stage returns the logits [logit_rows, vocab] (null if
  // none are wanted), any other its stream.
  virtual Tensor forward(Ctx& c, Tensor hidden) const = 0;
};

// Where the decoder lies in the checkpoint: Config::decoder if there is one, else "model".
template <class Config>
std::string decoder_name(const Config& config) {
  if constexpr (requires { config.decoder; }) return config.decoder;
  return "model";
}

// What is added to the weight of the final norm: Config::norm_weight_offset if there is one, else nothing.
template <class Config>
float final_norm_offset(const Config& config) {
  if constexpr (requires { config.norm_weight_offset; }) return config.norm_weight_offset;
  return 0;
}

// Layer: constructible from (Scope, Config, layer index), callable as layer(Ctx&, Residual&).
// Config: layers, hidden, vocab, eps, tied, and the optional ones above.
template <class Layer, class Config>
class CausalLM final : public Model {
 public:
  CausalLM(Scope s, const Config& config)
      : vocab_(s / decoder_name(config) / "embed_tokens", s / "lm_head", config.vocab, config.hidden,
               config.tied) {
    const Scope decoder = s / decoder_name(config);
    s.tables().hidden = config.hidden;
    s.tables().vocab = config.vocab;
    s.ignore("*.rotary_emb.inv_freq", "recomputed from the config");
    const Range range = s.stage_layers(config.layers);
    first_layer_ = range.begin;
    layers_.reserve(range.count);
    for (int64_t i = range.begin; i < range.begin + range.count; ++i) {
      layers_.emplace_back(decoder / "layers" / i, config, i);
    }
    if (s.mesh().last_stage()) {
      norm_ = std::make_unique<RmsNorm>(decoder / "norm", config.hidden, config.eps, final_norm_offset(config));
    }
  }

  Tensor forward(Ctx& c, Tensor hidden) const override {
    Residual h(c.mesh.first_stage() ? vocab_.embed(c, c.batch.token_ids) : hidden);
    for (size_t i = 0; i < layers_.size(); ++i) {
      h.enter_layer(static_cast<int>(first_layer_ + i));
      layers_[i](c, h);
    }
    if (!c.mesh.last_stage()) return h.settle(c);
    if (c.batch.logit_rows.empty()) return {};
    Tensor x = h.norm(c, *norm_);
    Tensor wanted = c.alloc(static_cast<int64_t>(c.batch.logit_rows.size()), x.dim(1));
    ops::run(c.stream, ops::GatherRows{wanted, x, c.batch.logit_rows});
    return vocab_.logits(c, wanted);
  }

 private:
  Vocab vocab_;
  int64_t first_layer_ = 0;
  std::vector<Layer> layers_;
  std::unique_ptr<RmsNorm> norm_;
};

}  // namespace atom::nn
