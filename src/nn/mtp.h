// Drafters: one layer of the model's kind that guesses the token after the next, from the embedding of the
// next and the model's hidden state at the last (multi-token prediction).
#pragma once
#include <optional>
#include <string>

#include "checkpoint/config_keys.h"
#include "nn/linear.h"
#include "nn/vocab.h"

namespace atom::nn {

// Where a drafter lies in the checkpoint: `scope` from its root, the other names relative to `scope`.
struct DrafterConfig {
  std::string scope;
  int64_t layer = 0;  // the index by which the model's Config knows its layer: behind the others
  std::string block;  // its layer; empty: `scope` itself
  std::string embed_norm, hidden_norm, join, norm;
  std::string embed, head;  // of its own, if the checkpoint has them
};

// model.layers.<layers> of DeepSeek-V3 and its kin. Says in the tables where it lies; nothing, and its
// tensors ignored, unless it is wanted.
std::optional<DrafterConfig> nextn_drafter(const Scope& s, const ConfigReader& config, int64_t layers);

// mtp.* of Qwen3-Next and Qwen3.5.
std::optional<DrafterConfig> qwen_drafter(const Scope& s, const ConfigReader& config, int64_t layers);

// Row t joins norm(embedding of token t + 1) and norm(hidden state of row t), which has been through the
// final norm; the layer's output, through a norm of its own, goes to the head, and is the hidden state of the
// row after. Its cache holds row t at position t. Layer and Config as in CausalLM.
template <class Layer, class Config>
class Drafter {
 public:
  // s: the scope that `names` has. `vocab` gives the embedding and the head.
  Drafter(Scope s, const Config& config, const DrafterConfig& names, const Vocab& vocab, float norm_offset)
      : vocab_(vocab),
        embed_norm_(s / names.embed_norm, config.hidden, config.eps, norm_offset),
        hidden_norm_(s / names.hidden_norm, config.hidden, config.eps, norm_offset),
        join_(s, Axis::none, 2 * config.hidden, {{names.join, config.hidden}}, /*bias=*/false),
        layer_(names.block.empty() ? s : s / names.block, config, names.layer),
        norm_(s / names.norm, config.hidden, config.eps, norm_offset) {}

  // hidden [tokens, hidden] -> the same, normalised. Batch::token_ids are the tokens after the rows.
  Tensor operator()(Ctx& c, Tensor hidden) const {
    const Tensor embedded = vocab_.embed(c, c.batch.token_ids);
    const int64_t n = hidden.dim(1);
    const Tensor both = c.alloc(hidden.dim(0), 2 * n);
    const auto normalise = [&](Tensor out, Tensor x, const RmsNorm& norm) {
      ops::run(c.stream, ops::RmsNorm{out, x, norm.weight(), norm.eps(), norm.weight_offset()});
    };
    normalise(both.cols(0, n), embedded, embed_norm_);
    normalise(both.cols(n, n), hidden, hidden_norm_);
    Residual h(join_(c, both));
    layer_(c, h);
    return h.norm(c, norm_);
  }
  Tensor logits(Ctx& c, Tensor x) const { return vocab_.logits(c, x); }

 private:
  Vocab vocab_;
  RmsNorm embed_norm_, hidden_norm_;
  ColumnLinear join_;
  Layer layer_;
  RmsNorm norm_;
};

}  // namespace atom::nn
