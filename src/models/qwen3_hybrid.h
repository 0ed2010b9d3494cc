// What Qwen3-Next and Qwen3.5 share: delta-net layers with a gated full-attention layer every few, and a
// dense block or experts in each.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/config_keys.h"
#include "nn/delta_net.h"
#include "nn/gated_attention.h"
#include "nn/moe.h"
#include "nn/mtp.h"

namespace atom {

struct HybridConfig {
  int64_t layers, hidden, inter, vocab;
  float eps;
  bool tied;
  std::string decoder = "model";
  float norm_weight_offset = 1;      // every norm but that inside the delta net
  std::vector<bool> full_attention;  // per layer, and of the drafter
  nn::GatedAttentionConfig attention;
  nn::DeltaNetConfig delta;
  nn::MoeConfig moe;
  std::vector<bool> sparse;  // per layer, and of the drafter: experts in place of a dense block
  std::optional<nn::DrafterConfig> drafter;

  HybridConfig(const Scope& s, const ConfigReader& config, nn::DeltaNetConfig::Packing packing);
};

struct HybridLayer {
  nn::RmsNorm mixer_norm, mlp_norm;
  std::variant<nn::GatedAttention, nn::DeltaNet> mixer;
  nn::MoeOrMlp mlp;

  HybridLayer(Scope s, const HybridConfig& config, int64_t index);
  void operator()(Ctx& c, nn::Residual& h) const;
  void keep_rows(Ctx& c) const;
};

}  // namespace atom
