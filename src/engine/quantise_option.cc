#include "engine/quantise_option.h"

#include "base/error.h"
#include "engine/drafter_choice.h"

namespace atom {

Quantisation plan_quantisation(const ModelFiles& files, const Checkpoint* checkpoint,
                               const std::string& target) {
  if (files.is_gguf) {
    throw invalid("{}: a .gguf file says the type of each tensor itself; only folders are quantised",
                  files.root.string());
  }
  if (ConfigReader(files.config).has("quantization_config") || !files.hf_quant_config.is_null()) {
    throw invalid(
        "{}: is quantised already, as {} says; only checkpoints in float32, bfloat16 or float16 are "
        "quantised",
        files.root.string(), files.hf_quant_config.is_null() ? "config.json" : "hf_quant_config.json");
  }
  const ModelDeclaration declaration(files);
  if (declaration.tables().drafter.scope.empty())
    return plan_quantisation(declaration.tables(), checkpoint, target);
  const ModelDeclaration drafting(files, wanted_drafter(checkpoint));
  return plan_quantisation(drafting.tables(), checkpoint, target);
}

Quantisation declare_quantised(ModelFiles& files, Checkpoint* checkpoint, const std::string& target) {
  Quantisation quantisation = plan_quantisation(files, checkpoint, target);
  files.config["quantization_config"] = quantisation.config;
  if (checkpoint == nullptr) return quantisation;
  std::vector<Checkpoint::Replacement> replacements;
  for (const QuantisedMatrix& m : quantisation.matrices)
    replacements.push_back({m.plain.name, {m.elements, m.scales}});
  checkpoint->replace(replacements);
  return quantisation;
}

void compute_quantised(const Quantisation& quantisation, Checkpoint& checkpoint, int threads,
                       const JobProgress::Report& report) {
  std::vector<QuantisedBytes> bytes;
  for (const QuantisedMatrix& m : quantisation.matrices) {
    bytes.push_back({&m, checkpoint.computed(checkpoint.get(m.elements.name)),
                     checkpoint.computed(checkpoint.get(m.scales.name))});
  }
  quantise(checkpoint, bytes, threads, report);
}

}  // namespace atom
