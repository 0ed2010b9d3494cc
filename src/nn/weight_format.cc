#include "nn/weight_format.h"

#include <fmt/core.h>

namespace atom {
namespace {

// Spellings of one list, by tool: which modules are stored as they were.
constexpr std::string_view kExcludeKeys[] = {"modules_to_not_convert", "ignore", "exclude_modules",
                                             "ignored_layers", "exclude"};

// Modules that a list knows by a name that they have in no checkpoint.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"indexers_proj", "indexer.weights_proj"}};

// What `quant_method` calls a format, and what it is.
constexpr std::pair<std::string_view, std::string_view> kUnsupported[] = {
    {"aqlm", "AQLM (codebooks)"},
    {"auto-round", "AutoRound (grouped integers)"},
    {"awq", "AWQ (4-bit integers with zero points)"},
    {"bitnet", "BitNet (ternary)"},
    {"bitsandbytes", "bitsandbytes (NF4 or INT8)"},
    {"eetq", "EETQ (INT8)"},
    {"fbgemm_fp8", "FBGEMM FP8 (FP8 per row with a bound on activations)"},
    {"fp_quant", "FP-Quant (rotated MXFP4 or NVFP4)"},
    {"gptq", "GPTQ (grouped integers)"},
    {"higgs", "HIGGS (lattice codebooks)"},
    {"hqq", "HQQ (grouped integers with zero points)"},
    {"quanto", "Quanto (integers)"},
    {"quip", "QuIP (codebooks)"},
    {"spqr", "SpQR (sparse and quantised)"},
    {"torchao", "TorchAO"},
    {"vptq", "VPTQ (codebooks)"},
};

using Make = std::shared_ptr<const WeightFormat> (*)(const ConfigReader&, NamePatterns);
constexpr std::pair<std::string_view, Make> kFormats[] = {
    {"fp8", make_fp8_format},
    {"compressed-tensors", make_compressed_format},
    {"mxfp4", make_mxfp4_format},
    {"quark", make_quark_format},
};

}  // namespace

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

Error unsupported_weights(const ConfigReader& q, std::string_view key, std::string_view what) {
  return q.error(
      key, fmt::format("weights stored as {} are not supported; use a checkpoint in FP8 (E4M3 with scales "
                       "per block, row or tensor), in MXFP4 as GPT-OSS, compressed-tensors or AMD Quark "
                       "have it, or in bf16",
                       what));
}

bool usually_plain(std::string_view tensor) {
  static const NamePatterns names(
      {"embed_tokens", "lm_head", "shared_head.head", "gate", "router", "shared_expert_gate", "weights_proj",
       "eh_proj", "in_proj_a", "in_proj_b", "in_proj_ba"},
      "");
  return names.match(WeightFormat::module_of(tensor));
}

void ignore_activation_scales(const Scope& s) {
  for (const char* name : {"input_scale", "activation_scale"}) {
    s.ignore(std::string("*.") + name, "scales of FP8 activations, which are not quantised here");
  }
}

NamePatterns excluded_modules(const ConfigReader& q) {
  std::vector<std::string> names;
  for (const std::string_view key : kExcludeKeys) {
    for (std::string& name : q.texts(key)) names.push_back(std::move(name));
  }
  for (size_t i = 0, n = names.size(); i < n; ++i) {
    for (const auto& [listed, stored] : kOtherNames) {
      if (!names[i].ends_with(listed)) continue;
      const std::string prefix = names[i].substr(0, names[i].size() - listed.size());
      if (prefix.empty() || prefix.back() == '.') names.push_back(prefix + std::string(stored));
    }
  }
  return NamePatterns(names, q.where());
}

std::string_view WeightFormat::module_of(std::string_view tensor) {
  constexpr std::string_view kWeight = ".weight";
  if (tensor.ends_with(kWeight)) tensor.remove_suffix(kWeight.size());
  return tensor;
}

void WeightFormat::apply(Piece& piece) const {
  std::vector<Source> all;
  for (const Source& plain : piece.any_of) {
    if (excluded_.match(module_of(plain.name))) {
      all.push_back(plain);
      continue;
    }
    for (Source& source : sources(plain)) all.push_back(std::move(source));
  }
  piece.any_of = std::move(all);
}

std::shared_ptr<const WeightFormat> make_weight_format(const ConfigReader& q) {
  // ModelOpt names its algorithm, and its method only of late.
  if (const std::string algorithm = q.text_or("quant_algo", ""); !algorithm.empty()) {
    if (algorithm != "FP8") throw unsupported_weights(q, "quant_algo", "ModelOpt " + quoted(algorithm));
    return make_compressed_format(q, excluded_modules(q));
  }
  const std::string method = q.text_or("quant_method", "");
  if (method.empty()) throw q.error("quant_method", "missing: it names how the weights are stored");
  for (const auto& [name, make] : kFormats) {
    if (method == name) return make(q, excluded_modules(q));
  }
  for (const auto& [name, what] : kUnsupported) {
    if (method == name) throw unsupported_weights(q, "quant_method", what);
  }
  throw unsupported_weights(q, "quant_method", quoted(method));
}

}  // namespace atom
