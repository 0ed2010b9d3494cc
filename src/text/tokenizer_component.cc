// Typed reading of the component objects of a tokenizer.json.
#include "text/tokenizer_component.h"

#include "base/error.h"

namespace atom::text {

Component::Component(const Json& json, std::string place) : json_(&json), place_(std::move(place)) {
  if (!json.is_object()) throw invalid("{}: expected an object, found {}", place_, json.type_name());
}

void Component::unknown_type(std::string_view known) const {
  throw invalid("{}.type: \"{}\" is not supported; known types: {}", place_, type(), known);
}

bool Component::has(std::string_view key) const {
  const auto found = json_->find(std::string(key));
  return found != json_->end() && !found->is_null();
}

const Json& Component::member(std::string_view key) const {
  const auto found = json_->find(std::string(key));
  if (found == json_->end()) throw invalid("{}: \"{}\" is missing", place_, key);
  return *found;
}

std::string Component::text(std::string_view key) const {
  const Json& value = member(key);
  if (!value.is_string()) throw invalid("{}.{}: expected a string, found {}", place_, key, value.type_name());
  return value.get<std::string>();
}

bool Component::flag(std::string_view key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const Json& value = member(key);
  if (!value.is_boolean())
    throw invalid("{}.{}: expected true or false, found {}", place_, key, value.type_name());
  return value.get<bool>();
}

int64_t Component::number(std::string_view key) const {
  const Json& value = member(key);
  if (!value.is_number_integer() || value.is_number_float()) {
    throw invalid("{}.{}: expected a whole number, found {}", place_, key, value.type_name());
  }
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) {
    throw invalid("{}.{}: {} is too large", place_, key, value.get<uint64_t>());
  }
  return value.get<int64_t>();
}

std::vector<Component> Component::children(std::string_view key) const {
  const Json& array = member(key);
  if (!array.is_array()) throw invalid("{}.{}: expected an array, found {}", place_, key, array.type_name());
  std::vector<Component> out;
  for (size_t i = 0; i < array.size(); ++i)
    out.emplace_back(array[i], fmt::format("{}.{}[{}]", place_, key, i));
  return out;
}

}  // namespace atom::text
