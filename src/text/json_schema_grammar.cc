// From JSON schema to grammar.
#include "text/json_schema_grammar.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "text/json_exprs.h"
#include "text/json_scanner.h"
#include "text/regex_grammar.h"

namespace atom::text {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr int kMaxSchemaDepth = 64;
constexpr int64_t kMaxCount = 100'000;  // of items, characters
constexpr int64_t kMaxSchemaRules = 20'000;
constexpr size_t kMaxTypes = 7, kMaxPathBytes = 1000;

// Keywords that say nothing of the value.
const std::set<std::string, std::less<>> kAnnotations = {
    "title",       "description", "default",   "examples", "$schema",    "$id",     "$comment", "$defs",
    "definitions", "readOnly",    "writeOnly", "example",  "deprecated", "$anchor", "nullable"};

// Formats as regular expressions.
const std::map<std::string, const char*, std::less<>> kFormats = {
    {"date", R"([0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01]))"},
    {"time",
     R"(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))"},
    {"date-time",
     R"([0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))"},
    {"uuid", R"([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})"},
    {"ipv4", R"(((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9]))"},
    {"email", R"([A-Za-z0-9_%+-]+(\.[A-Za-z0-9_%+-]+)*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,})"},
};

const char* const kAnyOfKeys[] = {"anyOf", "oneOf"};

// A place in the schema, for messages: "#/properties/a". Of a long one the beginning.
std::string below(const std::string& path, std::string_view key) {
  constexpr std::string_view kMore = "/...";
  if (path.ends_with(kMore)) return path;
  if (path.size() + key.size() > kMaxPathBytes) return path + std::string(kMore);
  std::string out = path + "/";
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

class SchemaCompiler {
 public:
  SchemaCompiler(GrammarBuilder& builder, const JsonExprs& json, const Json& root)
      : b_(builder), json_(json), root_(root) {}

  Result<Expr> run(const Json& part) {
    const Expr e = schema(part, "#", 0);
    if (error_) return *error_;
    return e;
  }

 private:
  Expr fail(const std::string& path, std::string_view what) {
    if (!error_) error_ = invalid("schema: {}: {}", path, what);
    return 0;
  }

  static const Json* find(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it == object.end() ? nullptr : &*it;
  }

  Expr schema(const Json& s, const std::string& path, int depth) {
    if (error_) return 0;
    if (depth > kMaxSchemaDepth) return fail(path, "nested too deeply");
    if (b_.full()) return fail(path, "too large from here on");
    if (s.is_boolean()) return s.get<bool>() ? json_.value() : fail(path, "false allows no value");
    if (!s.is_object()) return fail(path, "a schema must be an object or true");
    if (const Json* ref = find(s, "$ref")) {
      if (!only(s, path, {"$ref"})) return 0;
      return reference(*ref, path, depth);
    }
    if (const Json* value = find(s, "const")) {
      if (!only(s, path, {"const", "type"})) return 0;
      return literal(*value, type_list(s, path), path);
    }
    if (const Json* values = find(s, "enum")) {
      if (!only(s, path, {"enum", "type"})) return 0;
      if (!values->is_array() || values->empty())
        return fail(below(path, "enum"), "must be a list of values");
      const std::vector<std::string> types = type_list(s, path);
      std::vector<Expr> all;
      for (const Json& value : *values) all.push_back(literal(value, types, path));
      return b_.choice(std::move(all));
    }
    for (const char* key : kAnyOfKeys) {
      if (const Json* choices = find(s, key)) {
        if (!only(s, path, {key})) return 0;
        return any_of(*choices, below(path, key), depth);
      }
    }
    if (const Json* parts = find(s, "allOf")) {
      if (!only(s, path, {"allOf"})) return 0;
      if (!parts->is_array() || parts->size() != 1)
        return fail(below(path, "allOf"), "only with one schema is supported");
      return schema((*parts)[0], below(below(path, "allOf"), "0"), depth + 1);
    }
    return typed(s, path, depth);
  }

  // True if `s` has no keyword beside these and annotations; else the error is set.
  bool only(const Json& s, const std::string& path, std::initializer_list<std::string_view> known) {
    for (const auto& [key, value] : s.items()) {
      if (kAnnotations.contains(key)) continue;
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        fail(path, fmt::format("\"{}\" beside \"{}\" is not supported", key, *known.begin()));
        return false;
      }
    }
    return true;
  }

  Expr any_of(const Json& choices, const std::string& path, int depth) {
    if (!choices.is_array() || choices.empty()) return fail(path, "must be a list of schemas");
    std::vector<Expr> all;
    for (size_t i = 0; i < choices.size(); ++i) {
      all.push_back(schema(choices[i], below(path, std::to_string(i)), depth + 1));
    }
    return b_.choice(std::move(all));
  }

  // One rule per schema that is referred to, so that schemas may refer to themselves.
  Expr reference(const Json& ref, const std::string& path, int depth) {
    if (!ref.is_string()) return fail(path, "$ref must be a string");
    const auto& target = ref.get_ref<const std::string&>();
    if (const auto it = references_.find(target); it != references_.end()) return b_.call(it->second);
    if (target.size() > kMaxPathBytes) return fail(path, "$ref is too long");
    if (target != "#" && !target.starts_with("#/")) {
      return fail(
          path,
          fmt::format("$ref \"{}\": only references within the schema, \"#/...\", are supported", target));
    }
    const Json* at = &root_;
    for (size_t begin = 2; at != nullptr && begin <= target.size();) {
      const size_t end = std::min(target.find('/', begin), target.size());
      std::string key;
      for (size_t i = begin; i < end; ++i) {
        const bool escaped = target[i] == '~' && i + 1 < end;
        key += escaped ? (target[++i] == '1' ? '/' : '~') : target[i];
      }
      at = at->is_object() ? find(*at, key.c_str()) : nullptr;
      begin = end + 1;
    }
    if (at == nullptr) return fail(path, fmt::format("$ref \"{}\" leads nowhere", target));
    if (b_.rule_count() > kMaxSchemaRules) return fail(path, "too many references");
    const int rule = b_.add_rule(target);
    references_.emplace(target, rule);
    b_.define(rule, schema(*at, target, depth + 1));
    return b_.call(rule);
  }

  static std::string_view type_name(const Json& value) {
    if (value.is_string()) return "string";
    if (value.is_boolean()) return "boolean";
    if (value.is_null()) return "null";
    if (value.is_array()) return "array";
    if (value.is_object()) return "object";
    return value.is_number_float() && value.get<double>() != std::floor(value.get<double>()) ? "number"
                                                                                             : "integer";
  }

  Expr literal(const Json& value, const std::vector<std::string>& types, const std::string& path) {
    if (error_ || b_.full()) return 0;
    const std::string_view type = type_name(value);
    const bool fits = types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& t) {
                        return t == type || (t == "number" && type == "integer");
                      });
    if (!fits) return fail(path, fmt::format("{} is not of the schema's type", value.dump()));
    return b_.literal(value.dump());
  }

  // The names in `type`; empty if there is no type.
  std::vector<std::string> type_list(const Json& s, const std::string& path) {
    const Json* type = find(s, "type");
    if (type == nullptr) return {};
    std::vector<std::string> names;
    for (const Json& name : type->is_array() ? *type : Json::array({*type})) {
      if (name.is_string()) names.push_back(name.get<std::string>());
    }
    if (names.empty() || names.size() > kMaxTypes || (type->is_array() && names.size() != type->size())) {
      fail(below(path, "type"), "must be a name or a list of names");
    }
    return names;
  }

  Expr typed(const Json& s, const std::string& path, int depth) {
    static const std::map<std::string, std::set<std::string, std::less<>>, std::less<>> kKeywords = {
        {"object", {"properties", "required", "additionalProperties"}},
        {"array", {"items", "prefixItems", "minItems", "maxItems"}},
        {"string", {"minLength", "maxLength", "pattern", "format"}},
        {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
        {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
        {"boolean", {}},
        {"null", {}},
    };
    std::vector<std::string> types = type_list(s, path);
    if (types.empty()) {  // the type that the keywords speak of
      for (const char* type : {"object", "array", "string", "number"}) {
        const auto& keywords = kKeywords.find(type)->second;
        for (const auto& [key, value] : s.items()) {
          if (types.empty() && keywords.contains(key)) types.push_back(type);
        }
      }
    }
    for (const auto& [key, value] : s.items()) {
      if (key == "type" || kAnnotations.contains(key)) continue;
      if (key == "uniqueItems" && value == false) continue;
      const bool known = std::any_of(kKeywords.begin(), kKeywords.end(), [&name = key](const auto& entry) {
        return entry.second.contains(name);
      });
      if (!known) return fail(path, fmt::format("\"{}\" is not supported", key));
    }
    if (types.empty()) return json_.value();
    std::vector<Expr> all;
    for (const std::string& type : types) {
      if (type == "object") {
        all.push_back(object(s, path, depth));
      } else if (type == "array") {
        all.push_back(array(s, path, depth));
      } else if (type == "string") {
        all.push_back(string(s, path));
      } else if (type == "integer" || type == "number") {
        all.push_back(number(s, path, type == "integer"));
      } else if (type == "boolean") {
        all.push_back(json_.boolean());
      } else if (type == "null") {
        all.push_back(json_.null());
      } else {
        return fail(path, fmt::format("type \"{}\" is not known", type));
      }
    }
    if (const Json* nullable = find(s, "nullable"); nullable != nullptr && *nullable == true)
      all.push_back(json_.null());
    return b_.choice(std::move(all));
  }

  // A count that a keyword gives; nothing if it is absent.
  std::optional<int64_t> count(const Json& s, const std::string& path, const char* key) {
    const Json* value = find(s, key);
    if (value == nullptr) return std::nullopt;
    const bool whole = value->is_number_integer() ||
                       (value->is_number_float() && value->get<double>() == std::floor(value->get<double>()));
    const double number = whole ? value->get<double>() : -1;
    if (number < 0 || number > static_cast<double>(kMaxCount)) {
      fail(below(path, key), fmt::format("must be a whole number between 0 and {}", kMaxCount));
      return std::nullopt;
    }
    return static_cast<int64_t>(number);
  }

  Expr string(const Json& s, const std::string& path) {
    const std::optional<int64_t> min = count(s, path, "minLength"), max = count(s, path, "maxLength");
    const Json* pattern = find(s, "pattern");
    const Json* format = find(s, "format");
    const int given = (min || max ? 1 : 0) + (pattern != nullptr ? 1 : 0) + (format != nullptr ? 1 : 0);
    if (given > 1) return fail(path, "pattern, format and length beside each other are not supported");
    if (given == 0) return json_.string();
    if (pattern != nullptr || format != nullptr) {
      const Json& value = pattern != nullptr ? *pattern : *format;
      const std::string place = below(path, pattern != nullptr ? "pattern" : "format");
      if (!value.is_string()) return fail(place, "must be a string");
      std::string source = value.get<std::string>();
      if (pattern == nullptr) {
        const auto known = kFormats.find(source);
        if (known == kFormats.end()) return fail(place, fmt::format("\"{}\" is not supported", source));
        source = known->second;
      }
      RegexOptions options;
      options.search = pattern != nullptr;
      options.characters = [this](const CodePoints& ranges) { return json_.characters(ranges); };
      const Result<Expr> inside = regex_expr(b_, source, options);
      if (!inside.ok()) return fail(place, inside.error().message());
      return json_.quoted(inside.value());
    }
    if (max && min.value_or(0) > *max) return fail(path, "minLength is above maxLength");
    return json_.quoted(b_.repeat(json_.character(), min.value_or(0), max.value_or(-1)));
  }

  Expr number(const Json& s, const std::string& path, bool integer) {
    std::optional<int64_t> min, max;
    bool min_open = false, max_open = false;
    for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      const Json* value = find(s, key);
      if (value == nullptr) continue;
      const std::string_view name = key;
      const bool is_min = name.ends_with("inimum"), open = name.starts_with("exclusive");
      if (!value->is_number()) return fail(below(path, key), "must be a number");
      const double number = value->get<double>();
      const bool whole = number == std::floor(number);
      if (std::abs(number) > 1e15 || (!whole && !integer)) {
        return fail(below(path, key), "only whole numbers below 1e15 are supported");
      }
      // For integers a bound in between is the next whole number, and an open one the next further in.
      auto bound = static_cast<int64_t>(is_min ? std::ceil(number) : std::floor(number));
      if (integer && open && whole) bound += is_min ? 1 : -1;
      std::optional<int64_t>& side = is_min ? min : max;
      bool& side_open = is_min ? min_open : max_open;
      const bool tighter = !side || (is_min ? bound > *side : bound < *side) || (bound == *side && open);
      if (tighter) {
        side = bound;
        side_open = open && !integer;
      }
    }
    if (min && max && *min > *max) return fail(path, "no number lies between the bounds");
    if (!min && !max) return integer ? json_.integer() : json_.number();
    return integer ? json_.integer_between(min, max) : json_.number_between(min, min_open, max, max_open);
  }

  Expr array(const Json& s, const std::string& path, int depth) {
    const int64_t min = count(s, path, "minItems").value_or(0);
    const int64_t max = count(s, path, "maxItems").value_or(-1);
    if (max >= 0 && max < min) return fail(path, "minItems is above maxItems");
    const Json* items = find(s, "items");
    const Json* prefix = find(s, "prefixItems");
    const bool no_more = items != nullptr && *items == false;
    const Expr item = no_more            ? b_.nothing()
                      : items != nullptr ? rule_of(*items, below(path, "items"), depth)
                                         : json_.value();
    if (prefix == nullptr) return json_.list("[", item, "]", min, no_more ? 0 : max);
    if (!prefix->is_array() || prefix->empty())
      return fail(below(path, "prefixItems"), "must be a list of schemas");
    const auto fixed = static_cast<int64_t>(prefix->size());
    if (min < fixed || (max >= 0 && max < fixed)) {
      if (find(s, "minItems") != nullptr || max >= 0)
        return fail(path, "prefixItems with fewer items is not supported");
    }
    std::vector<Expr> parts = {b_.literal("["), json_.space()};
    for (int64_t i = 0; i < fixed; ++i) {
      if (i > 0) parts.insert(parts.end(), {b_.literal(","), json_.space()});
      parts.push_back(schema((*prefix)[static_cast<size_t>(i)],
                             below(below(path, "prefixItems"), std::to_string(i)), depth + 1));
    }
    if (!no_more && max != fixed) {
      const Expr next = b_.concat({b_.literal(","), json_.space(), item});
      parts.push_back(b_.repeat(next, std::max<int64_t>(min - fixed, 0), max < 0 ? -1 : max - fixed));
    }
    parts.insert(parts.end(), {json_.space(), b_.literal("]")});
    return b_.concat(std::move(parts));
  }

  // A schema that is used more than once becomes a rule.
  Expr rule_of(const Json& s, const std::string& path, int depth) {
    const Expr body = schema(s, path, depth + 1);
    if (b_.rule_count() > kMaxSchemaRules) return fail(path, "too many parts");
    return b_.call(b_.rule(path, body));
  }

  Expr object(const Json& s, const std::string& path, int depth) {
    struct Property {
      Expr pair;
      bool required;
    };
    std::set<std::string> required;
    if (const Json* names = find(s, "required")) {
      if (!names->is_array()) return fail(below(path, "required"), "must be a list of names");
      for (const Json& name : *names) {
        if (!name.is_string()) return fail(below(path, "required"), "must be a list of names");
        required.insert(name.get<std::string>());
      }
    }
    const Json* properties = find(s, "properties");
    const Json* additional = find(s, "additionalProperties");
    std::vector<Property> known;
    std::vector<std::string> names;
    if (properties != nullptr) {
      if (!properties->is_object()) return fail(below(path, "properties"), "must be an object");
      for (const auto& [name, value] : properties->items()) {
        const Expr body = schema(value, below(below(path, "properties"), name), depth + 1);
        known.push_back({json_.pair(b_.literal(Json(name).dump()), body), required.erase(name) > 0});
        names.push_back(name);
      }
    }
    const bool open = additional != nullptr ? *additional != false : properties == nullptr;
    std::optional<Expr> more;
    if (open) {
      const Expr body = additional != nullptr && additional->is_object()
                            ? rule_of(*additional, below(path, "additionalProperties"), depth)
                            : json_.value();
      // Names that are required and have no schema come first, as properties of any value.
      for (const std::string& name : required) {
        known.push_back({json_.pair(b_.literal(Json(name).dump()), body), true});
        names.push_back(name);
      }
      more = json_.pair(names.empty() ? json_.string() : json_.other_keys(names), body);
    } else if (!required.empty()) {
      return fail(below(path, "required"), fmt::format("\"{}\" is no property", *required.begin()));
    }
    if (error_) return 0;

    // From the last property back: what may follow behind the properties before, if one of them was written,
    // and if none was. Rules, for otherwise the parts would double with each property.
    const Expr comma = b_.concat({b_.literal(","), json_.space()});
    Expr behind_some = more ? b_.repeat(b_.concat({comma, *more}), 0) : b_.empty();
    Expr behind_none = more ? b_.optional(b_.concat({*more, behind_some})) : b_.empty();
    for (size_t i = known.size(); i-- > 0;) {
      if (b_.rule_count() > kMaxSchemaRules) return fail(path, "too many properties");
      const Expr rest = b_.call(b_.rule(path, behind_some));
      const Expr pair = b_.call(b_.rule(path, known[i].pair));
      const Expr some = b_.concat({comma, pair, rest}), first = b_.concat({pair, rest});
      const Expr skipped = behind_none;
      behind_some = known[i].required ? some : b_.choice({some, rest});
      behind_none = known[i].required ? first : b_.choice({first, b_.call(b_.rule(path, skipped))});
    }
    return b_.concat({b_.literal("{"), json_.space(), behind_none, json_.space(), b_.literal("}")});
  }

  GrammarBuilder& b_;
  const JsonExprs& json_;
  const Json& root_;
  std::optional<Error> error_;
  std::map<std::string, int> references_;
};

}  // namespace

bool says_nothing(std::string_view keyword) { return kAnnotations.contains(keyword); }

Result<std::shared_ptr<const Grammar>> json_object_grammar() {
  GrammarBuilder builder;
  const JsonExprs json(builder);
  return builder.compile(builder.rule("root", json.object()));
}

Result<Expr> json_schema_expr(GrammarBuilder& builder, const JsonExprs& json, const Json& schema,
                              const Json& root) {
  return SchemaCompiler(builder, json, root).run(schema);
}

Result<std::shared_ptr<const Grammar>> json_schema_grammar(const Json& schema) {
  GrammarBuilder builder;
  const JsonExprs json(builder);
  const Result<Expr> body = json_schema_expr(builder, json, schema, schema);
  if (!body.ok()) return body.error();
  return builder.compile(builder.rule("root", body.value()));
}

Result<std::shared_ptr<const Grammar>> regex_grammar(std::string_view pattern) {
  GrammarBuilder builder;
  const Result<Expr> body = regex_expr(builder, pattern);
  if (!body.ok()) return body.error();
  return builder.compile(builder.rule("root", body.value()));
}

}  // namespace atom::text
