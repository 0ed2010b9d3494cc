#include "server/constrained_output.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/openai_form.h"

namespace atom::server {
namespace {

using Kind = text::ContentForm::Kind;

constexpr size_t kMaxChoices = 1000;

const Json& required_schema(Fields& fields, std::string_view key) {
  const Json* schema = fields.object(key);
  if (schema == nullptr) {
    throw ApiError(400, "missing_field", fmt::format("{}: is required", fields.path(key)), fields.path(key));
  }
  return *schema;
}

// A schema with what goes with it: {name, description, schema, strict}. It is always kept to, strict or not.
text::ContentForm read_named_schema(Fields& fields) {
  fields.text("name");
  fields.text("description");
  fields.boolean("strict");
  return {Kind::json_schema, required_schema(fields, "schema"), {}};
}

// One of the texts.
text::ContentForm read_choice(const Json& texts, const std::string& path) {
  if (texts.empty()) throw bad_field(path, "must have a text");
  std::string pattern;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].is_string()) throw bad_field(path, "must be a list of texts");
    if (i > 0) pattern += '|';
    for (const char c : texts[i].get_ref<const std::string&>()) {
      if (std::string_view("\\^$.|?*+()[]{}/").find(c) != std::string_view::npos) pattern += '\\';
      pattern += c;
    }
  }
  return {Kind::regex, {}, std::move(pattern)};
}

RequestedContent read_structured_outputs(const Json& object) {
  Fields fields(object, "structured_outputs");
  std::vector<RequestedContent> found;
  const auto add = [&](std::string_view key, text::ContentForm form) {
    found.push_back({std::move(form), fields.path(key)});
  };
  if (fields.find("json") != nullptr) add("json", {Kind::json_schema, required_schema(fields, "json"), {}});
  if (fields.boolean("json_object").value_or(false)) add("json_object", {Kind::json_object, {}, {}});
  if (const auto pattern = fields.text("regex")) add("regex", {Kind::regex, {}, *pattern});
  if (const auto source = fields.text("grammar")) add("grammar", {Kind::ebnf, {}, *source});
  if (const Json* texts = fields.array("choice", kMaxChoices)) {
    add("choice", read_choice(*texts, fields.path("choice")));
  }
  fields.done();
  if (found.size() != 1) {
    throw bad_field("structured_outputs", "give one of json, json_object, regex, choice and grammar");
  }
  return std::move(found.front());
}

// Everything that the grammar depends on.
std::string key_of(const text::FormatChoice& format, const text::AnswerForm& form) {
  Json key = {static_cast<int>(format.tools),
              static_cast<int>(format.reasoning),
              static_cast<int>(form.content.kind),
              form.content.schema,
              form.content.source,
              form.must_call,
              form.in_reasoning,
              form.reasoned};
  for (const text::ToolSchema& tool : form.tools) key.push_back({tool.name, tool.parameters, tool.strict});
  return dump(key);
}

std::shared_ptr<text::GrammarMasks> compiled(const ServedModel& model, const std::string& key,
                                             const text::GrammarCache::Compile& compile,
                                             const std::string& field) {
  model.tokenizer();
  const auto masks = model.grammars->get(key, compile);
  if (masks.ok()) return masks.value();
  const std::string& message = masks.error().message();
  // Errors of tools name themselves.
  const bool of_tools = message.starts_with("tool");
  if (of_tools) throw ApiError(400, "invalid_value", message, "tools");
  throw bad_field(field.empty() ? "tools" : field, "{}", message);
}

}  // namespace

RequestedContent read_content(Fields& fields) {
  RequestedContent content;
  if (const Json* format = fields.object("response_format")) {
    Fields inner(*format, "response_format");
    const std::string type = inner.required_text("type");
    if (type == "json_schema") {
      const Json* object = inner.object("json_schema");
      if (object == nullptr) {
        throw ApiError(400, "missing_field", inner.path("json_schema") + ": is required",
                       inner.path("json_schema"));
      }
      Fields schema(*object, inner.path("json_schema"));
      content = {read_named_schema(schema), "response_format"};
      schema.done();
      inner.done();
    } else {
      content = read_format(*format, "response_format");
    }
  }
  const Json* outputs = fields.object("structured_outputs");
  if (outputs != nullptr && !content.any()) {
    throw bad_field("structured_outputs", "does not go with response_format; give one of them");
  }
  if (outputs != nullptr) content = read_structured_outputs(*outputs);
  for (const char* old : {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}) {
    fields.only(old, nullptr, "is not supported; use structured_outputs");
  }
  return content;
}

RequestedContent read_format(const Json& format, const std::string& path) {
  Fields fields(format, path);
  const std::string type = fields.required_text("type");
  RequestedContent content{.form = {}, .field = path};
  if (type == "json_object") {
    content.form.kind = Kind::json_object;
  } else if (type == "json_schema") {
    content.form = read_named_schema(fields);
  } else if (type != "text") {
    throw bad_field(fields.path("type"), "\"{}\" is not supported; use text, json_object or json_schema",
                    type);
  }
  fields.done();
  return content;
}

std::shared_ptr<text::GrammarMasks> constrain_text(const RequestedContent& content,
                                                   const ServedModel& model) {
  if (content.any()) return nullptr;
  const std::string key = "text " + key_of({}, {.content = content.form, .tools = {}});
  return compiled(
      model, key, [&] { return text::content_grammar(content.form); }, content.field);
}

std::shared_ptr<text::GrammarMasks> constrain_answer(const RequestedContent& content, text::AnswerForm form,
                                                     const ServedModel& model) {
  const bool strict =
      std::ranges::any_of(form.tools, [](const text::ToolSchema& tool) { return tool.strict; });
  if (content.any() && !form.must_call && !strict) return nullptr;
  form.content = content.form;
  const text::GrammarCache::Compile compile = [&] {
    return text::answer_grammar(model.format, form, model.grammars->specials());
  };
  return compiled(model, "answer " + key_of(model.format, form), compile, content.field);
}

}  // namespace atom::server
