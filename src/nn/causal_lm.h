// The decoder stack around a model's layers: embedding, layers of this stage, final norm, head, and the
// drafter if one is wanted.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "nn/mtp.h"
#include "ops/embed.h"

namespace atom::nn {

class Model {
 public:
  virtual ~Model() = default;
  // One step on this stage. The first stage embeds the batch's tokens, a later one is given the stream of the
  // stage before (`hidden`, [tokens, hidden]). The last stage returns the logits [logit_rows, vocab] (null if
  // none are wanted), any other its stream. `normalised`, if not null, is set on the last stage to all rows
  // after the final norm; they live until the arena begins the next block.
  virtual Tensor forward(Ctx& c, Tensor hidden, Tensor* normalised = nullptr) const = 0;

  // The drafter, on the last stage, if one is wanted. Row t goes on from `hidden` row t, what `normalised`
  // gave for it or an earlier row's output here, and Batch::token_ids holds the token after it. Returns the
  // logits of logit_rows (null if there are none), and those rows of its output in `output`.
  virtual Tensor draft(Ctx& c, Tensor hidden, Tensor* output) const = 0;
  virtual bool drafts() const = 0;

  // Adds rows of Batch::open_rows to the recurrent states, as Batch::recurrent says. The other rows of it are
  // dropped.
  virtual void keep_rows(Ctx& c) const = 0;
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

// Where its drafter lies: Config::drafter if there is such a member, else it has none.
template <class Config>
std::optional<DrafterConfig> drafter_of(const Config& config) {
  if constexpr (requires { config.drafter; }) return config.drafter;
  return std::nullopt;
}

// Layer: constructible from (Scope, Config, layer index), callable as layer(Ctx&, Residual&), and with
// keep_rows(Ctx&) if it has recurrent state.
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
    layers_.reserve(range.count);
    for (int64_t i = range.begin; i < range.begin + range.count; ++i) {
      layers_.emplace_back(decoder / "layers" / i, config, i);
    }
    if (s.mesh().last_stage()) {
      norm_ =
          std::make_unique<RmsNorm>(decoder / "norm", config.hidden, config.eps, final_norm_offset(config));
    }
    if (const std::optional<DrafterConfig> drafter = drafter_of(config); drafter && s.mesh().last_stage()) {
      const Scope at(s.tables(), drafter->scope);
      Vocab vocab = vocab_;
      vocab.take_own(at / drafter->embed, at / drafter->head);
      drafter_.emplace(at, config, *drafter, vocab, final_norm_offset(config));
    }
  }

  Tensor forward(Ctx& c, Tensor hidden, Tensor* normalised) const override {
    Residual h(c.mesh.first_stage() ? vocab_.embed(c, c.batch.token_ids) : hidden);
    for (const Layer& layer : layers_) layer(c, h);
    if (!c.mesh.last_stage()) return h.settle(c);
    if (c.batch.logit_rows.empty() && normalised == nullptr) return {};
    const Tensor x = h.norm(c, *norm_);
    if (normalised != nullptr) *normalised = x;
    if (c.batch.logit_rows.empty()) return {};
    return vocab_.logits(c, logit_rows(c, x));
  }

  Tensor draft(Ctx& c, Tensor hidden, Tensor* output) const override {
    const Tensor x = (*drafter_)(c, hidden);
    if (c.batch.logit_rows.empty()) return {};
    *output = logit_rows(c, x);
    return drafter_->logits(c, *output);
  }
  bool drafts() const override { return drafter_.has_value(); }

  void keep_rows(Ctx& c) const override {
    if constexpr (requires(const Layer& layer) { layer.keep_rows(c); }) {
      for (const Layer& layer : layers_) layer.keep_rows(c);
    }
  }

 private:
  static Tensor logit_rows(Ctx& c, Tensor x) {
    if (static_cast<int64_t>(c.batch.logit_rows.size()) == x.dim(0)) return x;
    const Tensor wanted = c.alloc(static_cast<int64_t>(c.batch.logit_rows.size()), x.dim(1));
    ops::run(c.stream, ops::GatherRows{wanted, x, c.batch.logit_rows});
    return wanted;
  }

  Vocab vocab_;
  std::vector<Layer> layers_;
  std::unique_ptr<RmsNorm> norm_;
  std::optional<Drafter<Layer, Config>> drafter_;
};

}  // namespace atom::nn
