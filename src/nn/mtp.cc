#include "nn/mtp.h"

namespace atom::nn {
namespace {

constexpr const char* kUnread = "a layer that predicts further tokens: loaded only with speculation";

}  // namespace

std::optional<DrafterConfig> nextn_drafter(const Scope& s, const ConfigReader& c, int64_t layers) {
  constexpr std::string_view kKey = "num_nextn_predict_layers";
  const int64_t drafters = c.integer_or(kKey, 1, 0, 64);
  const Scope first = s / "model" / "layers";
  DrafterTables& tables = s.tables().drafter;
  for (int64_t i = tables.wanted ? 1 : 0; i < drafters; ++i) {
    s.ignore((first / (layers + i)).join("*"),
             tables.wanted ? "a further layer that predicts tokens: the first drafts them all" : kUnread);
  }
  if (drafters > 0) tables.scope = (first / layers).path();
  if (!tables.wanted || drafters == 0) return std::nullopt;
  return DrafterConfig{.scope = tables.scope,
                       .layer = layers,
                       .embed_norm = "enorm",
                       .hidden_norm = "hnorm",
                       .join = "eh_proj",
                       .norm = "shared_head.norm",
                       .embed = "embed_tokens",
                       .head = "shared_head.head"};
}

std::optional<DrafterConfig> qwen_drafter(const Scope& s, const ConfigReader& c, int64_t layers) {
  constexpr std::string_view kKey = "mtp_num_hidden_layers";
  DrafterTables& tables = s.tables().drafter;
  const int64_t drafters = c.integer_or(kKey, 1, 0, 64);
  if (drafters == 1) tables.scope = "mtp";
  if (!tables.wanted || drafters != 1) {
    s.ignore("mtp.*", kUnread);
    return std::nullopt;
  }
  return DrafterConfig{.scope = tables.scope,
                       .layer = layers,
                       .block = "layers.0",
                       .embed_norm = "pre_fc_norm_embedding",
                       .hidden_norm = "pre_fc_norm_hidden",
                       .join = "fc",
                       .norm = "norm",
                       .embed = "embed_tokens",
                       .head = "lm_head"};
}

}  // namespace atom::nn
