#include "models/registry.h"

#include <fmt/ranges.h>

#include "base/text_util.h"
#include "nn/weight_format.h"

namespace atom {

#define ATOM_MODELS(X)                                \
  X("DeepseekV32ForCausalLM", make_deepseek_v32)      \
  X("DeepseekV3ForCausalLM", make_deepseek_v3)        \
  X("Glm4MoeForCausalLM", make_glm4_moe)              \
  X("GlmMoeDsaForCausalLM", make_glm_moe_dsa)         \
  X("GptOssForCausalLM", make_gpt_oss)                \
  X("KimiK25ForConditionalGeneration", make_kimi_k25) \
  X("LlamaForCausalLM", make_llama)                   \
  X("MiniMaxM2ForCausalLM", make_minimax_m2)          \
  X("MistralForCausalLM", make_llama)                 \
  X("MixtralForCausalLM", make_mixtral)               \
  X("Qwen3ForCausalLM", make_qwen3)                   \
  X("Qwen3MoeForCausalLM", make_qwen3_moe)            \
  X("Qwen3NextForCausalLM", make_qwen3_next)          \
  X("Qwen3_5ForCausalLM", make_qwen3_5)               \
  X("Qwen3_5ForConditionalGeneration", make_qwen3_5)  \
  X("Qwen3_5MoeForCausalLM", make_qwen3_5)            \
  X("Qwen3_5MoeForConditionalGeneration", make_qwen3_5)

#define X(architecture, make) std::unique_ptr<nn::Model> make(Scope, const ConfigReader&);
ATOM_MODELS(X)
#undef X

std::vector<std::string> supported_architectures() {
  return {
#define X(architecture, make) architecture,
      ATOM_MODELS(X)
#undef X
  };
}

std::unique_ptr<nn::Model> make_model(Scope s, const ConfigReader& config) {
  const std::vector<std::string> names = config.texts("architectures");
  if (names.empty()) throw config.error("architectures", "missing: it names the model's architecture");
  if (const auto quantization = config.section("quantization_config")) {
    s.tables().format = make_weight_format(*quantization);
    s.tables().format->ignore_unread(s);
  }
  for (const char* name : {"k_scale", "v_scale", "k_proj.output_scale", "v_proj.output_scale"}) {
    s.ignore(std::string("*.") + name, "scales of an FP8 cache: used with --kv-cache-dtype fp8 alone");
  }
  std::unique_ptr<nn::Model> model;
#define X(architecture, make) \
  if (names.front() == architecture) model = make(s, config);
  ATOM_MODELS(X)
#undef X
  if (model != nullptr) {
    const DrafterTables& drafter = s.tables().drafter;
    if (drafter.wanted && drafter.scope.empty()) {
      throw config.error(
          "architectures",
          fmt::format("\"{}\" has no layer here that drafts tokens for speculation", names.front()));
    }
    return model;
  }
  throw config.error("architectures", fmt::format("\"{}\" is not supported; supported are {}{}",
                                                  names.front(), fmt::join(supported_architectures(), ", "),
                                                  did_you_mean(names.front(), supported_architectures())));
}

}  // namespace atom
