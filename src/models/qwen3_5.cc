// Qwen3.5 (text): gated delta nets, every fourth layer gated full attention; dense or with experts.
// https://huggingface.co/Qwen/Qwen3.5-27B (config.json, model.safetensors.index.json)
#include "models/qwen3_hybrid.h"
#include "models/registry.h"

namespace atom {

std::unique_ptr<nn::Model> make_qwen3_5(Scope s, const ConfigReader& c) {
  HybridConfig config(s, c, nn::DeltaNetConfig::Packing::separate);
  if (c.texts("architectures").front().ends_with("ForConditionalGeneration")) {
    config.decoder = "model.language_model";
  }
  s.ignore("model.visual.*", "the vision tower: text only");
  return std::make_unique<nn::CausalLM<HybridLayer, HybridConfig>>(std::move(s), config);
}

}  // namespace atom
