#include "server/responses_input.h"

#include <fmt/format.h>

#include "server/fields.h"

namespace atom::server {
namespace {

std::string content_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw bad_field(path, "must be a string or a list of parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = part.required_text("type");
    if (type != "input_text" && type != "output_text" && type != "text" && type != "reasoning_text") {
      throw bad_field(part.path("type"), "\"{}\" is not supported; the model reads text only", type);
    }
    text += part.required_text("text");
    part.harmless({"annotations", "logprobs"});
    part.done();
  }
  return text;
}

// The assistant message that a call or reasoning belongs to: the last one, or a new one.
Json& assistant_turn(Json& messages) {
  if (messages.empty() || messages.back()["role"] != "assistant" || !messages.back()["content"].empty()) {
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  }
  return messages.back();
}

void add_item(const Json& item, const std::string& path, Json& messages) {
  Fields fields(item, path);
  const std::string type = fields.text("type").value_or("message");
  fields.harmless({"id", "status"});
  if (type == "message") {
    const std::string role = fields.required_text("role");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
      throw bad_field(fields.path("role"), "must be user, assistant, system or developer");
    }
    const Json* content = fields.find("content");
    if (content == nullptr)
      throw ApiError(400, "missing_field", fields.path("content") + ": is required", "input");
    fields.harmless({"phase"});
    const std::string text = content_text(*content, fields.path("content"));
    if (role == "assistant") {
      assistant_turn(messages)["content"] = text;
    } else {
      messages.push_back({{"role", role}, {"content", text}});
    }
  } else if (type == "function_call") {
    const std::string name = fields.required_text("name");
    const std::string arguments = fields.required_text("arguments");
    Json call = {{"id", fields.required_text("call_id")},
                 {"type", "function"},
                 {"function", {{"name", name}, {"arguments", arguments}}}};
    if (messages.empty() || messages.back()["role"] != "assistant") {
      messages.push_back({{"role", "assistant"}, {"content", ""}});
    }
    messages.back()["tool_calls"].push_back(std::move(call));
  } else if (type == "function_call_output") {
    const Json* output = fields.find("output");
    if (output == nullptr)
      throw ApiError(400, "missing_field", fields.path("output") + ": is required", "input");
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", fields.required_text("call_id")},
                        {"content", content_text(*output, fields.path("output"))}});
  } else if (type == "reasoning") {
    const Json* content = fields.array("content", 1024);
    fields.only("encrypted_content", nullptr, "is not supported");
    fields.harmless({"summary"});
    if (content != nullptr)
      assistant_turn(messages)["reasoning_content"] = content_text(*content, fields.path("content"));
  } else {
    throw bad_field(fields.path("type"), "\"{}\" is not supported", type);
  }
  fields.done();
}

}  // namespace

void add_response_input(const Json& input, Json& messages) {
  if (input.is_string()) {
    messages.push_back({{"role", "user"}, {"content", input}});
    return;
  }
  if (!input.is_array() || input.size() > 10000) {
    throw bad_field("input", "must be a string or a list of at most 10000 items");
  }
  for (size_t i = 0; i < input.size(); ++i) add_item(input[i], fmt::format("input[{}]", i), messages);
}

}  // namespace atom::server
