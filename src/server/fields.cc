#include "server/fields.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "base/text_util.h"

namespace atom::server {
namespace {

constexpr int64_t kMaxValues = 1'000'000;

ApiError wrong_type(const std::string& path, const char* wanted, const Json& value) {
  std::string shown = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (shown.size() > 60) shown = shown.substr(0, 60) + "...";
  // A cut may fall inside a character.
  while (!shown.empty() && !is_valid_utf8(shown)) shown.pop_back();
  return ApiError(400, "invalid_type", fmt::format("{}: must be {}, not {}", path, wanted, shown), path);
}

}  // namespace

Json parse_body(std::string_view body) {
  int64_t values = 0;
  std::vector<std::unordered_set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxJsonDepth) {
      throw ApiError(400, "invalid_json",
                     fmt::format("the body is nested deeper than {} levels", kMaxJsonDepth));
    }
    if (++values > kMaxValues) {
      throw ApiError(400, "invalid_json", fmt::format("the body holds more than {} values", kMaxValues));
    }
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw ApiError(400, "invalid_json", fmt::format("the body repeats the key \"{}\"", key), key);
      }
    }
    if (parsed.is_string() && parsed.get_ref<const std::string&>().find('\0') != std::string::npos) {
      throw ApiError(400, "invalid_json", "the body holds a NUL character in a string");
    }
    return true;
  };
  try {
    Json json = Json::parse(body, check);
    if (!json.is_object()) throw ApiError(400, "invalid_json", "the body must be a JSON object");
    return json;
  } catch (const Json::parse_error& e) {
    std::string_view what = e.what();
    if (const size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
    std::string message = fmt::format("the body is not valid JSON at byte {}: {}", e.byte, what);
    if (!is_valid_utf8(message)) message = fmt::format("the body is not valid JSON at byte {}", e.byte);
    throw ApiError(400, "invalid_json", message);
  } catch (const Json::exception&) {  // a number beyond double
    throw ApiError(400, "invalid_json", "the body holds a number that is out of range");
  }
}

Fields::Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
  if (!object.is_object()) throw wrong_type(place_.empty() ? "the body" : place_, "an object", object);
}

std::string Fields::path(std::string_view key) const {
  return place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key);
}

const Json* Fields::find(std::string_view key) {
  read_.emplace(key);
  const auto found = object_.find(std::string(key));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Fields::boolean(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw wrong_type(path(key), "true or false", *value);
  return value->get<bool>();
}

std::optional<int64_t> Fields::integer(std::string_view key, int64_t low, int64_t high) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) throw wrong_type(path(key), "an integer", *value);
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX;
  const int64_t number = huge ? INT64_MAX : value->get<int64_t>();
  if (huge || number < low || number > high) {
    throw bad_field(path(key), "{} is outside [{}, {}]", value->dump(), low, high);
  }
  return number;
}

std::optional<double> Fields::number(std::string_view key, double low, double high) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) throw wrong_type(path(key), "a number", *value);
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    throw bad_field(path(key), "{} is outside [{}, {}]", value->dump(), low, high);
  }
  return number;
}

std::optional<std::string> Fields::text(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw wrong_type(path(key), "a string", *value);
  return value->get<std::string>();
}

const Json* Fields::object(std::string_view key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) throw wrong_type(path(key), "an object", *value);
  return value;
}

const Json* Fields::array(std::string_view key, size_t max_size) {
  const Json* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) throw wrong_type(path(key), "an array", *value);
  if (value->size() > max_size) {
    throw bad_field(path(key), "has {} elements; at most {} are taken", value->size(), max_size);
  }
  return value;
}

std::string Fields::required_text(std::string_view key) {
  std::optional<std::string> value = text(key);
  if (!value) throw ApiError(400, "missing_field", fmt::format("{}: is required", path(key)), path(key));
  return *value;
}

void Fields::harmless(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) read_.emplace(key);
}

void Fields::only(std::string_view key, const Json& supported, std::string_view remedy) {
  const Json* value = find(key);
  if (value == nullptr || *value == supported) return;
  throw ApiError(400, "unsupported_value", fmt::format("{}: {}", path(key), remedy), path(key));
}

void Fields::done() const {
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null() || read_.contains(key)) continue;
    std::string shown = path(key);
    throw ApiError(400, "unsupported_field", fmt::format("{}: this field is not supported", shown), shown);
  }
}

}  // namespace atom::server
