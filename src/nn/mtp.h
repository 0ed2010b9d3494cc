// Layers that draft tokens for speculation, which checkpoints store behind the model's own.
#pragma once
#include "checkpoint/config_keys.h"
#include "nn/scope.h"

namespace atom::nn {

inline void ignore_draft_layers(const Scope& s, const ConfigReader& config, int64_t layers) {
  const int64_t drafts = config.integer_or("num_nextn_predict_layers", 1, 0, 64);
  for (int64_t i = layers; i < layers + drafts; ++i) {
    s.ignore((s / "model" / "layers" / i).join("*"),
             "a layer that predicts further tokens: loaded only with speculation");
  }
}

}  // namespace atom::nn
