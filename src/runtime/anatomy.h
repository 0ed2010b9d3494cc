// The anatomy of a model: where its parameters are, which of them a token touches, what each layer is and
// what it keeps per token. Read from the declaration alone: no weights, and no storage format, are looked at.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config_keys.h"
#include "models/outline.h"
#include "nn/causal_lm.h"

namespace atom {

// What a parameter belongs to.
enum class Component : uint8_t {
  routed_experts,
  shared_experts,
  dense_mlp,
  attention,
  linear_attention,
  indexer,
  gate,
  norms,
  lane_mixing,  // of a residual stream with several lanes
  vocabulary,   // embedding and head
  draft_block,  // layers that predict further tokens
};
inline constexpr int kComponents = static_cast<int>(Component::draft_block) + 1;

const char* component_name(Component component);  // "routed experts", ...

// Which component the parameter at `path` belongs to; the names are those of the checkpoints.
Component component_of(std::string_view path);
// The layer that `path` lies in; empty outside the layers.
std::optional<int64_t> layer_of(std::string_view path);

struct ParameterCount {
  int64_t total = 0;
  int64_t active = 0;  // touched by one token: of routed experts those that are chosen
};

struct LayerAnatomy {
  enum class Attention : uint8_t { full, sliding, latent, linear };
  enum class Indexer : uint8_t { none, own, shared };
  Attention attention = Attention::full;
  Indexer indexer = Indexer::none;
  bool experts = false;  // a dense block otherwise
  int64_t window = 0;    // sliding only: tokens a query sees, itself included
  ParameterCount parameters;
};
const char* attention_name(LayerAnatomy::Attention attention);  // "full", ...

// What the model's own layers keep, in bytes. Keys, values and latents in bf16; index keys as they are
// published, one e4m3 byte per lane and an f32 scale per 128 lanes; recurrent state in f32.
struct CacheAnatomy {
  int64_t kv_per_token = 0;       // all attention layers
  bool can_be_fp8 = false;        // then half of that
  int64_t sliding_per_token = 0;  // of these, layers that keep their window only
  int64_t index_per_token = 0;    // layers that own an indexer
  int64_t state_per_request = 0;
};

struct Anatomy {
  std::string architecture;
  bool supported = true;  // false: only its shapes are known, it cannot run
  int64_t hidden = 0, vocab = 0;
  std::array<ParameterCount, kComponents> components;
  std::vector<LayerAnatomy> layers;  // the model's own; drafting layers are not among them
  int64_t draft_layers = 0;
  CacheAnatomy cache;

  const ParameterCount& component(Component c) const { return components[static_cast<size_t>(c)]; }
  ParameterCount parameters() const;  // all components
  int64_t indexers(LayerAnatomy::Indexer kind) const;
};

// One rank's declaration of a model as if its weights were stored plainly, whatever the checkpoint's storage
// format: shapes are logical. Throws Error (invalid) for an unsupported architecture or a bad config.
class LogicalModel {
 public:
  struct Options {
    bool drafter = false;   // declare the layer that drafts tokens, too; an Error if there is none
    bool outlines = false;  // take an architecture that cannot run if its shapes are known (one rank)
    Mesh mesh = {};
    std::vector<int> stage_partition = {};
  };
  explicit LogicalModel(const Json& config) : LogicalModel(config, Options{}) {}
  LogicalModel(const Json& config, Options options);
  const Json& config() const { return config_; }
  const ModelTables& tables() const { return tables_; }
  const std::optional<Outline>& outline() const { return outline_; }

 private:
  Json config_;
  std::optional<Outline> outline_;
  ModelTables tables_;
  std::unique_ptr<nn::Model> model_;
};

// Whether the architecture, as the config describes it, has a layer that drafts tokens.
bool has_drafter(const Json& config);
// Layers that draft tokens, as the config announces them; 0: it announces none.
int64_t announced_draft_layers(const Json& config);
// Whether the parameter belongs to the layer that drafts tokens.
bool belongs_to_drafter(const ModelTables& tables, const ParamEntry& param);

// `model` must be the whole model (one rank). The layers that draft tokens are counted if it declares them.
Anatomy anatomy(const LogicalModel& model);

// One line of an unfolded layer: a tensor as the model reads it. Experts stand for each other.
struct TensorLine {
  std::string name;  // relative to the layer: "mlp.experts.*.down_proj.weight"
  int64_t rows = 0, cols = 1;
  int64_t count = 1;   // tensors of this kind
  std::string stored;  // type in the checkpoint; empty: not looked at, or not found
};
std::vector<TensorLine> unfold_layer(const LogicalModel& model, int64_t layer, const Checkpoint* checkpoint);

}  // namespace atom
