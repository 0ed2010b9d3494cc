// Probing a template, adapting messages to it, and continuing a final message.
#include "text/chat_messages.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "text/jinja_json.h"

namespace atom::text {
namespace {

// ---- probing ----

constexpr const char* kMarker = "atomprobe";
constexpr const char* kArgumentName = "atomkey";

Json message(const char* role, Json content) { return {{"role", role}, {"content", std::move(content)}}; }

Json tool_call(Json arguments) {
  return {{"id", "call00001"},  // nine characters, which Mistral's templates insist on
          {"type", "function"},
          {"function", {{"name", "f"}, {"arguments", std::move(arguments)}}}};
}

Json calling_message(Json content, Json arguments) {
  Json result = message("assistant", std::move(content));
  result["tool_calls"] = Json::array({tool_call(std::move(arguments))});
  return result;
}

class Prober {
 public:
  Prober(const ChatTemplate& chat_template, const ChatTemplateInputs& inputs)
      : template_(chat_template), inputs_(inputs) {
    inputs_.add_generation_prompt = false;
  }

  // What the template makes of the messages; nothing where it fails. Some templates insist on a list of
  // tools.
  std::optional<std::string> render(Json messages) {
    inputs_.messages = std::move(messages);
    jinja::Limits limits;
    limits.steps = 1'000'000;
    for (const Json& tools : {Json(nullptr), Json::array()}) {
      inputs_.tools = tools;
      try {
        return template_.render(inputs_, limits);
      } catch (const Error&) {
      }
    }
    return {};
  }

  // True if the text of a part of the message at `place` comes out, and not as part of a printed list.
  bool takes_parts(Json messages, size_t place) {
    messages[place]["content"] = Json::array({{{"type", "text"}, {"text", kMarker}}});
    const auto text = render(std::move(messages));
    if (!text || text->find(kMarker) == std::string::npos) return false;
    for (const char quote : {'\'', '"'})
      if (text->find(fmt::format("{}{}{}", quote, kMarker, quote)) != std::string::npos) return false;
    return true;
  }

  static Json call_conversation(Json content, Json arguments) {
    return Json::array({message("user", "q"), calling_message(std::move(content), std::move(arguments))});
  }

  // Does the name of an argument come out, given as a mapping or as text?
  std::optional<std::string> render_call(const Json& content, const Json& arguments) {
    auto text = render(call_conversation(content, arguments));
    if (text && text->find(kArgumentName) == std::string::npos) text.reset();
    return text;
  }

 private:
  const ChatTemplate& template_;
  ChatTemplateInputs inputs_;
};

// ---- normalising ----

std::string join_parts(const Json& parts) {
  std::string text;
  for (const Json& part : parts)
    text +=
        part.is_string() ? part.get_ref<const std::string&>() : part.at("text").get_ref<const std::string&>();
  return text;
}

void check_parts(const Json& parts, const std::string& place) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    if (part.is_string()) continue;
    if (!part.is_object()) throw invalid("{}[{}]: a part must be an object or a string", place, i);
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string())
      throw invalid("{}[{}]: a part needs a string 'type'", place, i);
    if (*type != "text")
      throw invalid("{}[{}]: a part of type '{}' cannot be given to a text model", place, i,
                    type->get<std::string>());
    const auto text = part.find("text");
    if (text == part.end() || !text->is_string())
      throw invalid("{}[{}]: a text part needs a string 'text'", place, i);
  }
}

bool keeps_parts(const TemplateTraits& traits, const std::string& role) {
  if (role == "system" || role == "developer") return traits.system_parts;
  if (role == "assistant") return traits.assistant_parts;
  if (role == "tool") return traits.tool_parts;
  return traits.user_parts;
}

bool has_calls(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

void normalize_arguments(Json& arguments, const std::string& place, const TemplateTraits& traits) {
  if (traits.string_arguments) {
    if (!arguments.is_string()) arguments = arguments.is_null() ? "{}" : jinja::json_text(arguments);
    return;
  }
  if (arguments.is_null()) {
    arguments = Json::object();
  } else if (arguments.is_string()) {
    const std::string text = arguments.get<std::string>();
    arguments =
        text.find_first_not_of(" \t\r\n") == std::string::npos ? Json::object() : parse_json(text, place);
  }
  if (!arguments.is_object()) throw invalid("{}: must be a JSON object, or the text of one", place);
}

void normalize_calls(Json& calls, const std::string& place, const TemplateTraits& traits) {
  if (calls.is_null()) return;
  if (!calls.is_array()) throw invalid("{}: must be an array", place);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].is_object()) throw invalid("{}[{}]: must be an object", place, i);
    const bool wrapped = calls[i].contains("function");
    Json& function = wrapped ? calls[i]["function"] : calls[i];
    const std::string path = fmt::format("{}[{}]{}", place, i, wrapped ? ".function" : "");
    if (!function.is_object()) throw invalid("{}: must be an object", path);
    normalize_arguments(function["arguments"], path + ".arguments", traits);
  }
}

void normalize_message(Json& message, const std::string& place, const TemplateTraits& traits) {
  if (!message.is_object()) throw invalid("{}: a message must be an object", place);
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string())
    throw invalid("{}: a message needs a string 'role'", place);
  const std::string name = role->get<std::string>();
  if (message.contains("tool_calls")) normalize_calls(message["tool_calls"], place + ".tool_calls", traits);
  Json& content = message["content"];
  if (content.is_array()) {
    check_parts(content, place + ".content");
    if (!keeps_parts(traits, name)) content = join_parts(content);
  } else if (content.is_null()) {
    if (!has_calls(message) || !traits.null_content_with_calls) content = "";
  } else if (!content.is_string()) {
    throw invalid("{}.content: must be a string, null or a list of parts", place);
  }
  if (has_calls(message) && traits.null_content_with_calls && content == "") content = nullptr;
}

// ---- continuing ----

// A text that occurs nowhere in the messages.
std::string unused_marker(const Json& messages) {
  const std::string all = messages.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string marker = "atom-continues-here";
  while (all.find(marker) != std::string::npos) marker += "-";
  return marker;
}

void append_to_content(Json& message, const std::string& text) {
  Json& content = message["content"];
  if (content.is_array() && !content.empty()) {
    Json& last = content.back();
    Json& target = last.is_string() ? last : last["text"];
    target = target.get<std::string>() + text;
  } else {
    content = (content.is_string() ? content.get<std::string>() : "") + text;
  }
}

}  // namespace

TemplateTraits probe_traits(const ChatTemplate& chat_template, const ChatTemplateInputs& inputs) {
  Prober prober(chat_template, inputs);
  TemplateTraits traits;
  const Json system = message("system", "s"), user = message("user", "q"),
             assistant = message("assistant", "a");
  traits.user_parts = prober.takes_parts(Json::array({user}), 0);
  traits.system_parts = prober.takes_parts(Json::array({system, user}), 0);
  traits.assistant_parts = prober.takes_parts(Json::array({user, assistant}), 1);

  const Json mapping = {{kArgumentName, "v"}};
  const Json text = fmt::format("{{\"{}\": \"v\"}}", kArgumentName);
  std::optional<std::string> called, called_null;
  for (const Json& content : {Json(""), Json(nullptr)}) {
    const auto by_mapping = prober.render_call(content, mapping), by_text = prober.render_call(content, text);
    const bool printed =
        by_mapping && by_mapping->find(fmt::format("{{'{}'", kArgumentName)) != std::string::npos;
    if ((!by_mapping || printed) && by_text) traits.string_arguments = true;
    (content.is_null() ? called_null : called) = by_mapping && !printed ? by_mapping : by_text;
  }
  // None is kept only where the template shows the call because of it.
  traits.null_content_with_calls = called_null && !called;

  Json tool = message("tool", "r");
  tool["tool_call_id"] = "call00001";
  tool["name"] = "f";
  const Json no_content = traits.null_content_with_calls ? Json(nullptr) : Json("");
  Json conversation = Prober::call_conversation(no_content, traits.string_arguments ? text : mapping);
  conversation.push_back(tool);
  traits.tool_parts = prober.takes_parts(std::move(conversation), 2);
  return traits;
}

Json normalize_messages(Json messages, const TemplateTraits& traits) {
  if (!messages.is_array()) throw invalid("messages: must be an array");
  if (messages.empty()) throw invalid("messages: must hold at least one message");
  for (size_t i = 0; i < messages.size(); ++i)
    normalize_message(messages[i], fmt::format("messages[{}]", i), traits);
  return messages;
}

std::string render_prompt(const ChatTemplate& chat_template, const TemplateTraits& traits,
                          ChatTemplateInputs inputs, bool continue_final_message) {
  inputs.messages = normalize_messages(std::move(inputs.messages), traits);
  if (!continue_final_message) return chat_template.render(inputs);
  if (inputs.add_generation_prompt)
    throw invalid("continue_final_message and add_generation_prompt exclude each other");
  Json& last = inputs.messages.back();
  if (last["role"] != "assistant")
    throw invalid("continue_final_message needs an assistant message at the end");
  if (has_calls(last)) throw invalid("continue_final_message: the final message must not call tools");
  // A marker shows where the content ends, whatever earlier text repeats it.
  const std::string marker = unused_marker(inputs.messages);
  append_to_content(last, marker);
  std::string prompt = chat_template.render(inputs);
  const size_t end = prompt.rfind(marker);
  if (end == std::string::npos)
    throw invalid("{}: the template does not show the final message, so it cannot be continued",
                  chat_template.name());
  prompt.resize(end);
  return prompt;
}

}  // namespace atom::text
