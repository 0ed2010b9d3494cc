// AMD Quark's weights (quant_method quark): MXFP4 or FP8, chosen for all modules and otherwise by their
// names.
//
//   fp4:      X.weight [N, K / 2] U8: E2M1, two values a byte, low four bits first
//             X.weight_scale [N, K / 32] U8: E8M0
//   fp8_e4m3: X.weight [N, K] F8_E4M3, X.weight_scale: one value, or [N, 1] or [N] per row
//
// What the config says of activations, the cache and the algorithm that found the numbers changes no weight.
#include <fmt/core.h>

#include "nn/weight_format.h"
#include "tensor/quantise.h"

namespace atom {
namespace {

// The types that a config has for the weights of a module; none: they are as they were.
struct Storage {
  bool fp8 = false, mxfp4 = false;
  bool operator==(const Storage&) const = default;
};

class QuarkFormat final : public WeightFormat {
 public:
  struct Rule {
    NamePatterns modules;
    Storage storage;
  };
  QuarkFormat(NamePatterns excluded, Storage others, std::vector<Rule> rules)
      : WeightFormat(std::move(excluded)), others_(others), rules_(std::move(rules)) {}

  void ignore_unread(const Scope& s) const override {
    ignore_activation_scales(s);
    s.ignore("*output_scale", "scales of FP8 activations, which are not quantised here");
  }

 protected:
  std::vector<Source> sources(const Source& plain) const override {
    const Storage storage = storage_of(module_of(plain.name));
    std::vector<Source> all;
    if (storage.mxfp4 && plain.index < 0) all.push_back(mxfp4_source(plain, plain.name));
    all.push_back(storage.fp8 ? fp8_source(plain, 0, 0) : plain);
    return all;
  }

 private:
  // Where several patterns match, what is stored decides.
  Storage storage_of(std::string_view module) const {
    std::optional<Storage> found;
    for (const Rule& rule : rules_) {
      if (!rule.modules.match(module)) continue;
      if (!found) found.emplace();
      found->fp8 |= rule.storage.fp8;
      found->mxfp4 |= rule.storage.mxfp4;
    }
    return found.value_or(others_);
  }

  Storage others_;
  std::vector<Rule> rules_;
};

Storage read_mxfp4(const ConfigReader& w) {
  const std::string scheme = w.text_or("qscheme", "per_group"), scales = w.text_or("scale_format", "float");
  const int64_t size = w.integer_or("group_size", 0), axis = w.integer_or("ch_axis", -1, -kMxfp4Group);
  if (scheme != "per_group" || size != kMxfp4Group || scales != "e8m0" || (axis != -1 && axis != 1)) {
    throw unsupported_weights(w, "dtype",
                              fmt::format("AMD Quark \"fp4\" with scales {} {} of {} along axis {}", scales,
                                          quoted(scheme), size, axis));
  }
  return {.mxfp4 = true};
}

Storage read_fp8(const ConfigReader& w) {
  const std::string scheme = w.text("qscheme");
  if (scheme == "per_tensor") return {.fp8 = true};
  if (scheme == "per_channel" && w.integer_or("ch_axis", 0, -kMxfp4Group) == 0) return {.fp8 = true};
  throw unsupported_weights(w, "qscheme",
                            fmt::format("AMD Quark \"fp8_e4m3\" {}{}", quoted(scheme),
                                        scheme == "per_channel" ? " of columns" : ""));
}

// How a config for some modules stores their weights.
Storage read_storage(const ConfigReader& modules) {
  if (modules.has("bias")) throw unsupported_weights(modules, "bias", "AMD Quark with quantised biases");
  const Json* weight = modules.find("weight");
  if (weight == nullptr) return {};
  if (weight->is_array()) throw unsupported_weights(modules, "weight", "AMD Quark in several steps");
  const ConfigReader w = *modules.section("weight");
  const std::string type = w.text("dtype");
  if (type == "fp4") return read_mxfp4(w);
  if (type == "fp8_e4m3") return read_fp8(w);
  throw unsupported_weights(w, "dtype", "AMD Quark " + quoted(type));
}

std::vector<QuarkFormat::Rule> read_rules(const ConfigReader& q) {
  std::vector<QuarkFormat::Rule> rules;
  const std::optional<ConfigReader> layers = q.section("layer_quant_config");
  if (!layers) return rules;
  for (const auto& [pattern, value] : layers->json().items()) {
    if (!pattern.starts_with("re:") && pattern.find_first_of("?[") != std::string::npos)
      throw layers->error(pattern, "patterns with ? or [ are not supported; use * or re:");
    const std::optional<ConfigReader> modules = layers->section(pattern);
    rules.push_back({NamePatterns({pattern}, layers->where()), modules ? read_storage(*modules) : Storage{}});
  }
  return rules;
}

}  // namespace

std::shared_ptr<const WeightFormat> make_quark_format(const ConfigReader& q, NamePatterns excluded) {
  if (const std::optional<ConfigReader> written = q.section("export")) {
    const std::string how = written->text_or("weight_format", "real_quantized");
    if (how != "real_quantized") {
      throw unsupported_weights(*written, "weight_format", "AMD Quark " + quoted(how));
    }
  }
  const std::optional<ConfigReader> global = q.section("global_quant_config");
  if (!global) throw q.error("global_quant_config", "missing: it says how the weights are stored");
  const Storage others = read_storage(*global);
  if (const std::optional<ConfigReader> types = q.section("layer_type_quant_config")) {
    for (const auto& [type, value] : types->json().items()) {
      const std::optional<ConfigReader> modules = types->section(type);
      if ((modules ? read_storage(*modules) : Storage{}) == others) continue;
      throw types->error(type,
                         "weights stored unlike those of global_quant_config by the type of their module are "
                         "not supported; use a checkpoint that lists names in layer_quant_config");
    }
  }
  return std::make_shared<QuarkFormat>(std::move(excluded), others, read_rules(q));
}

}  // namespace atom
