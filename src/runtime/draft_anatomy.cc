#include "runtime/draft_anatomy.h"

#include "runtime/anatomy.h"

namespace atom {
namespace {

constexpr int64_t kMaxDraftLayers = 64;

// The config of the same model with `drafts` layers more, which are of the kind that drafts: full attention
// with an indexer of their own, and experts.
Json with_draft_layers(Json config, int64_t layers, int64_t drafts) {
  const auto every_layer = [&](const char* key, const char* kind) {
    config[key] = Json(std::vector<std::string>(static_cast<size_t>(layers + drafts), kind));
  };
  config["num_hidden_layers"] = layers + drafts;
  if (config.contains("index_topk")) every_layer("indexer_types", "full");
  if (config.contains("mlp_layer_types")) every_layer("mlp_layer_types", "sparse");
  if (config.contains("layer_types") || config.contains("full_attention_interval"))
    every_layer("layer_types", "full_attention");
  return config;
}

}  // namespace

DraftAnatomy draft_anatomy(const Json& json) {
  const ConfigReader config(json);
  const int64_t stacked = config.integer_or("num_nextn_predict_layers", 0, 0, kMaxDraftLayers);
  const int64_t chained = config.integer_or("mtp_num_hidden_layers", 0, 0, kMaxDraftLayers);
  const int64_t drafts = std::max(stacked, chained);
  if (drafts == 0) return {};
  // They are the last stage of a pipeline whose first stage is the model.
  const int64_t layers = config.integer("num_hidden_layers", 1, int64_t{1} << 20);
  const LogicalModel model(with_draft_layers(json, layers, drafts), Mesh{.stage = 1, .stages = 2},
                           {static_cast<int>(layers), static_cast<int>(drafts)});
  DraftAnatomy result{.layers = drafts};
  for (const ParamEntry& param : model.tables().params) {
    if (!layer_of(param.path)) continue;  // the stage's norm and head
    for (const Piece& piece : param.pieces) result.parameters += piece.rows * piece.cols;
  }
  // Hidden state and embedding of the next token, normalised, are projected into the layer; a norm follows
  // it.
  const int64_t hidden = model.tables().hidden;
  result.parameters += std::max<int64_t>(1, stacked) * (2 * hidden * hidden + 3 * hidden);
  return result;
}

}  // namespace atom
