#include "checkpoint/rope_config.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

namespace atom {
namespace {

constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;

// rope_parameters may hold one object (or null) per layer type instead of the settings themselves.
bool is_per_layer_type(const Json& parameters) {
  return parameters.is_object() && !parameters.empty() &&
         std::all_of(parameters.begin(), parameters.end(),
                     [](const Json& item) { return item.is_object() || item.is_null(); }) &&
         std::any_of(parameters.begin(), parameters.end(), [](const Json& item) { return item.is_object(); });
}

// The settings of `layer_type`; without a layer type all must be equal.
const Json& for_layer_type(const ConfigReader& config, const Json& parameters, std::string_view layer_type) {
  if (!layer_type.empty()) {
    const auto it = parameters.find(layer_type);
    if (it != parameters.end() && it->is_object()) return *it;
    throw config.error("rope_parameters", fmt::format("nothing for layer type {}", layer_type));
  }
  for (const Json& item : parameters) {
    if (item != parameters.front()) {
      throw config.error("rope_parameters",
                         "differs by layer type, which this architecture does not support");
    }
  }
  return parameters.front();
}

std::string_view canonical_key(std::string_view key) { return key == "type" ? "rope_type" : key; }

// "mrope" only says that mrope_section is there.
Json canonical_value(std::string_view key, const Json& value) {
  if (key == "rope_type" && value == "mrope") return "default";
  return value;
}

// Every spelling in one object with the newest key names; disagreement is an error naming both places.
class RopeKeys {
 public:
  explicit RopeKeys(const ConfigReader& config) : config_(config) {}

  void add_object(std::string_view name, const Json& object) {
    if (!object.is_object()) throw config_.error(name, "not an object");
    for (const auto& [key, value] : object.items()) add(fmt::format("{}.{}", name, key), key, value);
  }

  void add(std::string place, std::string_view raw_key, const Json& raw_value) {
    if (raw_value.is_null()) return;
    const std::string key(canonical_key(raw_key));
    Json value = canonical_value(key, raw_value);
    if (!merged_.contains(key)) {
      merged_[key] = std::move(value);
      places_[key] = std::move(place);
    } else if (merged_[key] != value) {
      throw invalid("{}: {} is {} but {} is {}: they name the same setting; remove one", config_.where(),
                    places_[key], merged_[key].dump(), place, value.dump());
    }
  }

  bool has(std::string_view key) const { return merged_.contains(key); }
  const Json& merged() const { return merged_; }

 private:
  const ConfigReader& config_;
  Json merged_ = Json::object();
  std::map<std::string, std::string> places_;
};

RopeType parse_type(const ConfigReader& rope) {
  if (!rope.has("rope_type")) {
    if (rope.has("factor")) throw rope.error("rope_type", "missing, although there is a scaling factor");
    return RopeType::plain;
  }
  const std::string type = rope.text("rope_type");
  if (type == "default" || type == "none") return RopeType::plain;
  if (type == "linear") return RopeType::linear;
  if (type == "dynamic") return RopeType::dynamic;
  if (type == "llama3") return RopeType::llama3;
  if (type == "yarn") return RopeType::yarn;
  throw rope.error("rope_type", fmt::format("{} is not supported (default, linear, dynamic, llama3 and yarn "
                                            "are)",
                                            Json(type).dump(-1, ' ', true)));
}

void read_scaling(const ConfigReader& config, const ConfigReader& rope, RopeConfig& out) {
  if (out.type == RopeType::plain) return;
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  if (out.type == RopeType::dynamic) {  // grows from the configured length
    out.original_max_position_embeddings = config.integer("max_position_embeddings", 1);
  } else if (out.type == RopeType::llama3 || rope.has(kOriginal)) {
    out.original_max_position_embeddings = rope.integer(kOriginal, 1);
  } else if (out.type == RopeType::yarn) {
    out.original_max_position_embeddings = config.integer("max_position_embeddings", 1);
  }
  if (const auto factor = rope.number_if("factor", 1, kMaxFactor)) {
    out.factor = *factor;
  } else if (out.type == RopeType::yarn && rope.has(kOriginal)) {
    // Without a factor YaRN stretches the original length to the configured one.
    out.factor = std::max(1.0, config.number("max_position_embeddings", 1) /
                                   static_cast<double>(out.original_max_position_embeddings));
  } else {
    throw rope.error("factor", "this key is required and missing");
  }
  if (out.type == RopeType::llama3) {
    out.low_freq_factor = rope.number("low_freq_factor", 0, kMaxFactor);
    out.high_freq_factor = rope.number("high_freq_factor", out.low_freq_factor, kMaxFactor);
    if (out.high_freq_factor <= 0) throw rope.error("high_freq_factor", "must be positive");
  }
  if (out.type == RopeType::yarn) {
    out.beta_slow = rope.number_or("beta_slow", 1, 1e-6, kMaxFactor);
    out.beta_fast = rope.number_or("beta_fast", 32, out.beta_slow, kMaxFactor);
    out.mscale = rope.number_if("mscale", 0, kMaxFactor);
    out.mscale_all_dim = rope.number_if("mscale_all_dim", 0, kMaxFactor);
    out.attention_factor = rope.number_if("attention_factor", 1e-6, kMaxFactor);
    out.truncate = rope.boolean_or("truncate", true);
  }
}

void read_width(const ConfigReader& config, const ConfigReader& rope, int64_t head_dim,
                const RopeDefaults& defaults, RopeConfig& out) {
  const std::optional<double> factor = rope.number_if("partial_rotary_factor", 1e-6, 1);
  const std::optional<int64_t> rotary_dim = config.integer_if("rotary_dim", 2, head_dim);
  out.partial_rotary_factor = factor.value_or(defaults.partial_rotary_factor);
  out.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * out.partial_rotary_factor);
  if (rotary_dim) {
    if (factor && out.rotary_dim != *rotary_dim) {
      throw config.error("rotary_dim",
                         fmt::format("{} but partial_rotary_factor {} of head dim {} is {}; remove one",
                                     *rotary_dim, *factor, head_dim, out.rotary_dim));
    }
    out.rotary_dim = *rotary_dim;
    out.partial_rotary_factor = static_cast<double>(*rotary_dim) / static_cast<double>(head_dim);
  }
  if (out.type == RopeType::dynamic && out.rotary_dim == 2)
    throw rope.error("rope_type", "dynamic needs more than two rotating lanes");
  if (out.rotary_dim < 2 || out.rotary_dim % 2 != 0) {
    throw config.error("partial_rotary_factor",
                       fmt::format("{} of head dim {} is {} rotating lanes; an even number is needed",
                                   out.partial_rotary_factor, head_dim, out.rotary_dim));
  }
}

void read_sections(const ConfigReader& rope, RopeConfig& out) {
  const int64_t frequencies = out.rotary_dim / 2;
  out.mrope_section = rope.integers("mrope_section", 0, frequencies);
  out.mrope_interleaved = rope.boolean_or("mrope_interleaved", false);
  if (!out.mrope_section.empty()) {
    int64_t sum = 0;
    for (const int64_t n : out.mrope_section) sum += n;
    if (sum != frequencies) {
      throw rope.error("mrope_section", fmt::format("adds up to {}, not {}", sum, frequencies));
    }
  }
  const Json* factors = rope.find("freq_factors");
  if (factors == nullptr) return;
  if (!factors->is_array() || static_cast<int64_t>(factors->size()) != frequencies) {
    throw rope.error("freq_factors", fmt::format("not a list of {} numbers", frequencies));
  }
  for (const Json& item : *factors) {
    if (!item.is_number() || !(item.get<double>() > 0)) {
      throw rope.error("freq_factors", "holds something else than positive numbers");
    }
    out.freq_factors.push_back(item.get<double>());
  }
}

}  // namespace

const char* rope_type_name(RopeType type) {
  static constexpr std::array kNames = {"default", "linear", "dynamic", "llama3", "yarn"};
  return kNames.at(static_cast<size_t>(type));
}

RopeConfig parse_rope(const ConfigReader& config, int64_t head_dim, const RopeDefaults& defaults,
                      std::string_view layer_type) {
  CHECK(head_dim > 0, "head_dim {}", head_dim);
  RopeKeys keys(config);
  const Json* parameters = config.find("rope_parameters");
  const bool per_layer_type = parameters != nullptr && is_per_layer_type(*parameters);
  if (parameters != nullptr) {
    keys.add_object("rope_parameters",
                    per_layer_type ? for_layer_type(config, *parameters, layer_type) : *parameters);
  }
  if (const Json* scaling = config.find("rope_scaling")) keys.add_object("rope_scaling", *scaling);
  for (const std::string_view key :
       {"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}) {
    // One outer value cannot agree with several layer types: there it is only the default.
    const Json* value = config.find(key);
    if (value != nullptr && !(per_layer_type && keys.has(key))) keys.add(std::string(key), key, *value);
  }
  const ConfigReader rope(keys.merged(), config.where() + ": rope_parameters");

  RopeConfig out;
  out.type = parse_type(rope);
  if (const auto theta = rope.number_if("rope_theta", 1, kMaxTheta)) {
    out.theta = *theta;
  } else if (defaults.theta) {
    out.theta = *defaults.theta;
  } else {
    throw config.error("rope_theta", "missing, and this architecture has no default for it");
  }
  read_width(config, rope, head_dim, defaults, out);
  read_scaling(config, rope, out);
  read_sections(rope, out);
  return out;
}

}  // namespace atom
