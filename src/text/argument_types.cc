// Types of arguments, from schemas.
#include "text/argument_types.h"

#include "text/json_scanner.h"
#include "text/text_feed.h"

namespace atom::text {
namespace {

constexpr int kMaxSchemaDepth = 16;
constexpr int kMaxSchemaSteps = 1000;  // per tool: references may fan out

TypeSet type_of_name(std::string_view name) {
  if (name == "string") return kStringType;
  if (name == "number" || name == "integer") return kNumberType;
  if (name == "boolean") return kBooleanType;
  if (name == "null") return kNullType;
  if (name == "array") return kArrayType;
  if (name == "object") return kObjectType;
  return kAnyType;
}

TypeSet type_of_value(const Json& value) {
  if (value.is_string()) return kStringType;
  if (value.is_number()) return kNumberType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_array()) return kArrayType;
  return value.is_object() ? kObjectType : kNullType;
}

// Follows one schema; `root` is what references start from.
class SchemaTypes {
 public:
  explicit SchemaTypes(const Json& root) : root_(root) {}

  TypeSet of(const Json& schema, int depth = 0) {
    if (!schema.is_object() || depth > kMaxSchemaDepth || ++steps_ > kMaxSchemaSteps) return kAnyType;
    TypeSet types = kAnyType;
    if (const Json* type = find(schema, "type")) types &= of_type(*type);
    if (const Json* value = find(schema, "const")) types &= type_of_value(*value);
    if (const Json* values = find(schema, "enum"); values != nullptr && values->is_array()) {
      TypeSet some = 0;
      for (const Json& value : *values) some |= type_of_value(value);
      types &= some;
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      const Json* choices = find(schema, key);
      if (choices == nullptr || !choices->is_array()) continue;
      TypeSet some = 0;
      for (const Json& choice : *choices) some |= of(choice, depth + 1);
      types &= some;
    }
    if (const Json* parts = find(schema, "allOf"); parts != nullptr && parts->is_array()) {
      for (const Json& part : *parts) types &= of(part, depth + 1);
    }
    if (const Json* target = reference(schema)) types &= of(*target, depth + 1);
    if (const Json* nullable = find(schema, "nullable"); nullable != nullptr && *nullable == true)
      types |= kNullType;
    return types == 0 ? kAnyType : types;
  }

 private:
  static const Json* find(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it == object.end() ? nullptr : &*it;
  }

  static TypeSet of_type(const Json& type) {
    if (type.is_string()) return type_of_name(type.get_ref<const std::string&>());
    if (!type.is_array()) return kAnyType;
    TypeSet some = 0;
    for (const Json& name : type)
      some |= name.is_string() ? type_of_name(name.get_ref<const std::string&>()) : kAnyType;
    return some;
  }

  const Json* reference(const Json& schema) const {
    const Json* reference = find(schema, "$ref");
    if (reference == nullptr || !reference->is_string()) return nullptr;
    std::string_view path = reference->get_ref<const std::string&>();
    if (!path.starts_with("#/")) return nullptr;
    const Json* at = &root_;
    for (path.remove_prefix(2); at != nullptr;) {
      const size_t slash = path.find('/');
      const std::string key(path.substr(0, slash));
      at = at->is_object() ? find(*at, key.c_str()) : nullptr;
      if (slash == std::string_view::npos) break;
      path.remove_prefix(slash + 1);
    }
    return at;
  }

  const Json& root_;
  int steps_ = 0;
};

TypeSet type_of_text(std::string_view json) {
  switch (json.front()) {
    case '"':
      return kStringType;
    case '{':
      return kObjectType;
    case '[':
      return kArrayType;
    case 't':
    case 'f':
      return kBooleanType;
    case 'n':
      return kNullType;
    default:
      return kNumberType;
  }
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_ascii_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_ascii_space(text.back())) text.remove_suffix(1);
  return text;
}

bool is_json_beginning(std::string_view text) {
  JsonScanner scanner;
  for (const char c : text) {
    const JsonScanner::Status status = scanner.feed(c);
    if (status == JsonScanner::Status::bad || status == JsonScanner::Status::past_end) return false;
  }
  return true;
}

}  // namespace

ArgumentTypes::ArgumentTypes(const Json& parameters) {
  if (!parameters.is_object()) return;
  const auto properties = parameters.find("properties");
  if (properties == parameters.end() || !properties->is_object()) return;
  SchemaTypes types(parameters);
  for (const auto& [name, schema] : properties->items()) types_.emplace(name, types.of(schema));
}

TypeSet ArgumentTypes::of(std::string_view argument) const {
  const auto it = types_.find(argument);
  return it == types_.end() ? kAnyType : it->second;
}

std::string typed_value(std::string_view text, TypeSet types) {
  std::string_view value = trim(text);
  if (value == "True") value = "true";
  if (value == "False") value = "false";
  if (value == "None") value = "null";
  if (types != kStringType && is_json(value) && (type_of_text(value) & types & ~kStringType) != 0) {
    return std::string(value);
  }
  std::string out = "\"";
  append_json_escaped(text, out);
  out += '"';
  return out;
}

std::string typed_beginning(std::string_view text, TypeSet types) {
  const std::string_view value = trim(text);
  if (value.empty()) return {};
  if (types != kStringType && is_json_beginning(value) && (type_of_text(value) & types & ~kStringType) != 0) {
    return std::string(value);
  }
  std::string out = "\"";
  append_json_escaped(text, out);
  return out;
}

}  // namespace atom::text
