// Qwen3-Next: gated delta nets, every fourth layer gated full attention, and experts.
// https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct (config.json, model.safetensors.index.json)
#include "models/qwen3_hybrid.h"
#include "models/registry.h"

namespace atom {

std::unique_ptr<nn::Model> make_qwen3_next(Scope s, const ConfigReader& c) {
  const HybridConfig config(s, c, nn::DeltaNetConfig::Packing::grouped);
  return std::make_unique<nn::CausalLM<HybridLayer, HybridConfig>>(std::move(s), config);
}

}  // namespace atom
