#include "models/registry.h"

#include <fmt/ranges.h>

#include "base/text_util.h"

namespace atom {

#define ATOM_MODELS(X)                  \
  X("LlamaForCausalLM", make_llama)     \
  X("MistralForCausalLM", make_llama)   \
  X("Qwen3ForCausalLM", make_qwen3)     \
  X("Qwen3_5ForCausalLM", make_qwen3_5) \
  X("Qwen3_5ForConditionalGeneration", make_qwen3_5)

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
#define X(architecture, make) \
  if (names.front() == architecture) return make(std::move(s), config);
  ATOM_MODELS(X)
#undef X
  throw config.error("architectures", fmt::format("\"{}\" is not supported; supported are {}{}",
                                                  names.front(), fmt::join(supported_architectures(), ", "),
                                                  did_you_mean(names.front(), supported_architectures())));
}

}  // namespace atom
