// Calls as parts of a grammar.
#include "text/tool_grammar.h"

#include <algorithm>
#include <map>
#include <set>

#include "text/argument_types.h"
#include "text/json_exprs.h"
#include "text/json_schema_grammar.h"
#include "text/marked_text.h"
#include "text/tool_choice.h"

namespace atom::text {
namespace {

using Expr = GrammarBuilder::Expr;

// One tag per argument.
struct Markup {
  std::string_view before_key, string_value, other_value;  // the value is behind one of the latter
  std::string_view before_close;                           // of values that are not text
  std::string_view close, end;                             // a line break stands between
};

const Markup* markup_of(ResponseFormat format) {
  static constexpr Markup kQwen = {"<parameter=", ">\n",          ">\n",
                                   "\n",          "</parameter>", "</function>\n</tool_call>"};
  static constexpr Markup kGlm = {
      "<arg_key>", "</arg_key>\n<arg_value>", "</arg_key>\n<arg_value>", "", "</arg_value>", "</tool_call>"};
  static constexpr Markup kDsml = {
      "<｜DSML｜parameter name=\"", "\" string=\"true\">",
      "\" string=\"false\">",       "",
      "</｜DSML｜parameter>",       "</｜DSML｜invoke>\n</｜DSML｜function_calls>"};
  switch (format) {
    case ResponseFormat::qwen3_coder:
      return &kQwen;
    case ResponseFormat::glm45:
      return &kGlm;
    case ResponseFormat::deepseek_v32:
      return &kDsml;
    default:
      return nullptr;
  }
}

// What follows the arguments where they are one JSON object; tokens that the end of the text stands for are
// left out.
std::string_view end_of(ResponseFormat format) {
  switch (format) {
    case ResponseFormat::hermes:
      return "}\n</tool_call>";
    case ResponseFormat::llama3_json:
      return "}";
    case ResponseFormat::mistral:
      return "}]";
    case ResponseFormat::deepseek_v3:
      return "\n```";
    default:
      return "";
  }
}

class CallGrammar {
 public:
  CallGrammar(const FormatChoice& format, GrammarBuilder& builder, std::span<const std::string> specials)
      : format_(format), specials_(specials), b_(builder), json_(b_) {}

  Expr literal(std::string_view text) { return b_.literal(spell_specials(text, specials_)); }

  // The arguments of a tool and the end of the call.
  Result<Expr> arguments(const ToolSchema& tool) {
    const Markup* markup = markup_of(format_.tools);
    if (markup != nullptr) return tagged(tool, *markup);
    const Json parameters = object_schema(tool);
    Result<Expr> body = schema(tool, parameters, parameters, json_.object());
    if (!body.ok()) return body;
    return b_.concat({json_.space(), body.value(), literal(end_of(format_.tools))});
  }

 private:
  // The parameters as the schema of an object, whatever the client left out.
  static Json object_schema(const ToolSchema& tool) {
    Json schema = tool.parameters.is_object() ? tool.parameters : Json::object();
    if (!schema.contains("type")) schema["type"] = "object";
    return schema;
  }

  Result<Expr> schema(const ToolSchema& tool, const Json& schema, const Json& root, Expr otherwise) {
    Result<Expr> body = json_schema_expr(b_, json_, schema, root);
    if (body.ok() || !tool.strict) return body.ok() ? body.value() : otherwise;
    return invalid("tool \"{}\": {}", tool.name, body.error().message());
  }

  Result<Expr> tagged(const ToolSchema& tool, const Markup& markup) {
    const Json parameters = object_schema(tool);
    const ArgumentTypes types(parameters);
    std::set<std::string> required;
    if (parameters.contains("required") && parameters["required"].is_array()) {
      for (const Json& name : parameters["required"]) {
        if (name.is_string()) required.insert(name.get<std::string>());
      }
    }
    const auto fault = [&](std::string_view place, std::string_view keyword) {
      return invalid("tool \"{}\": schema: #{}: \"{}\" is not supported here in this model's calls",
                     tool.name, place, keyword);
    };
    if (const std::string keyword = beyond_properties(parameters); tool.strict && !keyword.empty()) {
      return fault("", keyword);
    }
    std::vector<Expr> parts;
    if (parameters.contains("properties") && parameters["properties"].is_object()) {
      for (const auto& [key, property] : parameters["properties"].items()) {
        const bool text = (types.of(key) & kStringType) != 0;
        std::vector<Expr> argument = {literal(markup.before_key), b_.literal(key)};
        argument.push_back(b_.literal(text ? markup.string_value : markup.other_value));
        const std::vector<Expr> values = strings_of(property);
        if (tool.strict && text) {
          const bool one_of = !values.empty() && types.of(key) == kStringType;
          const std::string keyword = beyond_text(property, one_of);
          if (!keyword.empty()) return fault("/properties/" + key, keyword);
        }
        if (text && !values.empty()) {
          argument.insert(argument.end(),
                          {b_.choice(values), literal(markup.before_close), literal(markup.close)});
        } else if (text) {
          argument.push_back(text_up_to(markup.close));
        } else {
          const Result<Expr> value = schema(tool, property, parameters, json_.value());
          if (!value.ok()) return value.error();
          argument.insert(argument.end(),
                          {value.value(), literal(markup.before_close), literal(markup.close)});
        }
        argument.push_back(b_.literal("\n"));
        const Expr e = b_.concat(std::move(argument));
        parts.push_back(required.contains(key) ? e : b_.optional(e));
      }
    }
    parts.push_back(literal(markup.end));
    return b_.concat(std::move(parts));
  }

  // What the parameters ask for that a tag per property does not see to; empty if nothing.
  static std::string beyond_properties(const Json& parameters) {
    for (const auto& [key, value] : parameters.items()) {
      const bool known =
          (key == "type" && value == "object") || key == "properties" || key == "additionalProperties";
      if (key == "required" && value.is_array()) {
        const auto properties = parameters.find("properties");
        const bool there = std::ranges::all_of(value, [&](const Json& name) {
          return name.is_string() && properties != parameters.end() &&
                 properties->contains(name.get<std::string>());
        });
        if (there) continue;
      }
      if (!known && !says_nothing(key)) return key;
    }
    return {};
  }

  // What a schema asks for that a text of its types may break; empty if nothing. `one_of`: the text is one of
  // the schema's values.
  static std::string beyond_text(const Json& s, bool one_of) {
    if (!s.is_object()) return {};
    for (const auto& [key, value] : s.items()) {
      if (says_nothing(key) || (one_of && (key == "enum" || key == "const"))) continue;
      if ((key == "anyOf" || key == "oneOf") && value.is_array()) {
        for (const Json& choice : value) {
          if (!beyond_text(choice, false).empty()) return key;
        }
        continue;
      }
      const bool integer =
          value == "integer" || (value.is_array() && std::ranges::count(value, "integer") > 0);
      if (key != "type" || integer) return key;
    }
    return {};
  }

  // The values of an enum of strings, or the one of a constant; none if it is something else.
  std::vector<Expr> strings_of(const Json& property) {
    std::vector<Expr> values;
    if (!property.is_object()) return values;
    if (const auto value = property.find("const"); value != property.end() && value->is_string()) {
      return {b_.literal(value->get<std::string>())};
    }
    if (!property.contains("enum") || !property["enum"].is_array()) return values;
    for (const Json& value : property["enum"]) {
      if (!value.is_string()) return {};
      values.push_back(b_.literal(value.get<std::string>()));
    }
    return values;
  }

  Expr text_up_to(std::string_view marker) {
    const std::string mark = spell_specials(marker, specials_);
    const auto it = texts_.find(mark);
    return it != texts_.end() ? it->second : texts_.emplace(mark, text_through(b_, mark, {})).first->second;
  }

  const FormatChoice& format_;
  const std::span<const std::string> specials_;
  GrammarBuilder& b_;
  const JsonExprs json_;
  std::map<std::string, Expr> texts_;  // by their end
};

}  // namespace

Result<Expr> call_expr(GrammarBuilder& builder, const FormatChoice& format,
                       const std::vector<ToolSchema>& tools, std::span<const std::string> specials) {
  if (tools.empty()) return invalid("tool_choice: a call is required, but there are no tools");
  CallGrammar calls(format, builder, specials);
  std::vector<Expr> choices;
  for (const ToolSchema& tool : tools) {
    const Result<std::string> prefix = call_prefix(format, tool.name);
    if (!prefix.ok()) return prefix.error();
    const Result<Expr> arguments = calls.arguments(tool);
    if (!arguments.ok()) return arguments.error();
    choices.push_back(builder.concat({calls.literal(prefix.value()), arguments.value()}));
  }
  return builder.choice(std::move(choices));
}

}  // namespace atom::text
