#include "checkpoint/config_keys.h"

#include <cmath>

namespace atom {
namespace {

constexpr double kMaxExactInteger = 9007199254740992.0;  // 2^53

// Short form of a value for messages.
std::string show(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace

ConfigReader::ConfigReader(const Json& object, std::string where)
    : object_(&object), where_(std::move(where)) {
  if (!object.is_object()) throw invalid("{}: not a JSON object", where_);
}

Error ConfigReader::error(std::string_view key, std::string_view message) const {
  return invalid("{}: {}: {}", where_, key, message);
}

const Json* ConfigReader::find(std::string_view key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

namespace {

int64_t to_integer(const ConfigReader& reader, std::string_view key, const Json& value, int64_t min,
                   int64_t max) {
  int64_t number = 0;
  bool ok = value.is_number();
  if (value.is_number_unsigned()) {
    const uint64_t u = value.get<uint64_t>();
    ok = u <= static_cast<uint64_t>(INT64_MAX);
    number = static_cast<int64_t>(u);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {  // some writers say 4096.0
    const double d = value.get<double>();
    ok = std::abs(d) < kMaxExactInteger && d == std::floor(d);
    if (ok) number = static_cast<int64_t>(d);
  }
  if (!ok) throw reader.error(key, fmt::format("{} is not an integer", show(value)));
  if (number < min || number > max) {
    throw reader.error(key, fmt::format("{} is not between {} and {}", number, min, max));
  }
  return number;
}

double to_number(const ConfigReader& reader, std::string_view key, const Json& value, double min,
                 double max) {
  if (!value.is_number()) throw reader.error(key, fmt::format("{} is not a number", show(value)));
  const double number = value.get<double>();
  if (!(number >= min && number <= max)) {
    throw reader.error(key, fmt::format("{} is not between {} and {}", number, min, max));
  }
  return number;
}

}  // namespace

std::optional<int64_t> ConfigReader::integer_if(std::string_view key, int64_t min, int64_t max) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return to_integer(*this, key, *value, min, max);
}

int64_t ConfigReader::integer_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
  return integer_if(key, min, max).value_or(fallback);
}

int64_t ConfigReader::integer(std::string_view key, int64_t min, int64_t max) const {
  if (const auto value = integer_if(key, min, max)) return *value;
  throw error(key, "this key is required and missing");
}

std::optional<double> ConfigReader::number_if(std::string_view key, double min, double max) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return to_number(*this, key, *value, min, max);
}

double ConfigReader::number_or(std::string_view key, double fallback, double min, double max) const {
  return number_if(key, min, max).value_or(fallback);
}

double ConfigReader::number(std::string_view key, double min, double max) const {
  if (const auto value = number_if(key, min, max)) return *value;
  throw error(key, "this key is required and missing");
}

bool ConfigReader::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) throw error(key, "this key is required and missing");
  if (!value->is_boolean()) throw error(key, fmt::format("{} is not true or false", show(*value)));
  return value->get<bool>();
}

bool ConfigReader::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? boolean(key) : fallback;
}

std::string ConfigReader::text(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) throw error(key, "this key is required and missing");
  if (!value->is_string()) throw error(key, fmt::format("{} is not a string", show(*value)));
  return value->get<std::string>();
}

std::string ConfigReader::text_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}

std::vector<int64_t> ConfigReader::integers(std::string_view key, int64_t min, int64_t max) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {to_integer(*this, key, *value, min, max)};
  std::vector<int64_t> numbers;
  numbers.reserve(value->size());
  for (const Json& item : *value) numbers.push_back(to_integer(*this, key, item, min, max));
  return numbers;
}

std::vector<std::string> ConfigReader::texts(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) throw error(key, fmt::format("{} is not a list of strings", show(*value)));
  std::vector<std::string> strings;
  strings.reserve(value->size());
  for (const Json& item : *value) {
    if (!item.is_string()) throw error(key, fmt::format("{} is not a string", show(item)));
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

std::optional<ConfigReader> ConfigReader::section(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return ConfigReader(*value, fmt::format("{}: {}", where_, key));
}

std::string_view ConfigReader::spelling(std::initializer_list<std::string_view> keys) const {
  CHECK(keys.size() > 0);
  std::string_view found;
  for (const std::string_view key : keys) {
    const Json* value = find(key);
    if (value == nullptr) continue;
    if (found.empty()) {
      found = key;
    } else if (const Json& first = *find(found); first != *value) {
      throw invalid("{}: {} is {} but {} is {}: they name the same setting; remove one", where_, found,
                    show(first), key, show(*value));
    }
  }
  return found.empty() ? *keys.begin() : found;
}

int64_t read_layers(const ConfigReader& config) {
  constexpr int64_t kMaxLayers = 4096;
  return config.integer("num_hidden_layers", 1, kMaxLayers);
}

float read_norm_eps(const ConfigReader& config, double fallback) {
  return static_cast<float>(config.number_or("rms_norm_eps", fallback, 0, 1));
}

int64_t read_window(const ConfigReader& config, int64_t fallback) {
  const auto said = config.json().find("sliding_window");
  if (said != config.json().end() && said->is_null()) return 0;
  return config.integer_or("sliding_window", fallback, 1, kMaxWindow);
}

int64_t read_head_dim(const ConfigReader& config) {
  constexpr int64_t kMaxHeadDim = 1 << 16;
  if (const auto head_dim = config.integer_if("head_dim", 1, kMaxHeadDim)) return *head_dim;
  const int64_t hidden = config.integer("hidden_size", 1);
  const int64_t heads = config.integer("num_attention_heads", 1);
  if (hidden % heads != 0) {
    throw config.error(
        "head_dim",
        fmt::format("missing, and hidden_size {} is not divisible by num_attention_heads {}", hidden, heads));
  }
  return hidden / heads;
}

std::optional<DType> read_dtype(const ConfigReader& config) {
  const auto one = [&](std::string_view key) -> std::optional<DType> {
    if (!config.has(key)) return std::nullopt;
    std::string name = config.text(key);
    if (name.starts_with("torch.")) name.erase(0, 6);
    if (name == "bfloat16") return DType::bf16;
    if (name == "float16" || name == "half") return DType::f16;
    if (name == "float32" || name == "float") return DType::f32;
    throw config.error(key, fmt::format("{} is not bfloat16, float16 or float32", show(name)));
  };
  const std::optional<DType> current = one("dtype"), old = one("torch_dtype");
  if (current && old && *current != *old) config.spelling({"dtype", "torch_dtype"});  // throws, naming both
  return current ? current : old;
}

}  // namespace atom
