#include "server/chat_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <unordered_set>

#include "server/generate_fields.h"
#include "text/tool_choice.h"
#include "text/unicode.h"

namespace atom::server {
namespace {

constexpr size_t kMaxTools = 256;

bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == ':' || c == '/';
  });
}

uint64_t random_number() {
  static thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return random();
}

}  // namespace

ChatTask new_task(const ServedModel& model) {
  if (!model.text->has_chat_template()) {
    throw ApiError(400, "no_chat_template", "this model has no chat template; use /v1/completions");
  }
  model.tokenizer();
  ChatTask task;
  task.inputs = model.text->template_inputs();
  return task;
}

void set_tools(ChatTask& task, const ServedModel& model, const Json& tools) {
  if (!tools.is_array()) throw bad_field("tools", "must be an array");
  if (tools.empty()) return;
  if (tools.size() > kMaxTools)
    throw bad_field("tools", "has {} entries; at most {} are taken", tools.size(), kMaxTools);
  if (!model.template_reads("tools")) {
    throw ApiError(400, "unsupported_field", "tools: this model's chat template does not take tools",
                   "tools");
  }
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    Fields tool(tools[i], fmt::format("tools[{}]", i));
    if (tool.required_text("type") != "function")
      throw bad_field(tool.path("type"), "only \"function\" is supported");
    const Json* object = tool.object("function");
    if (object == nullptr)
      throw ApiError(400, "missing_field", tool.path("function") + ": is required", "tools");
    tool.done();
    Fields function(*object, tool.path("function"));
    text::ToolSchema schema{.name = function.required_text("name"), .parameters = Json::object()};
    if (!is_tool_name(schema.name)) {
      throw bad_field(function.path("name"), "use up to 128 letters, digits and _ - . : /");
    }
    if (!names.insert(schema.name).second)
      throw bad_field(function.path("name"), "another tool has this name");
    function.text("description");
    if (const Json* parameters = function.object("parameters")) schema.parameters = *parameters;
    schema.strict = function.boolean("strict").value_or(false);
    function.done();
    task.tools.push_back(std::move(schema));
  }
  // Whether calls are held to the schema is nothing that the model needs to know.
  task.inputs.tools = tools;
  for (Json& tool : task.inputs.tools) tool["function"].erase("strict");
}

void forbid_calls(ChatTask& task) {
  task.inputs.tools = nullptr;
  task.tools.clear();
  task.parse_tools = false;
}

void force_call(ChatTask& task, const std::string& name) {
  if (task.tools.empty()) throw bad_field("tool_choice", "there are no tools to be called");
  const auto is_named = [&](const text::ToolSchema& tool) { return tool.name == name; };
  if (!name.empty() && std::ranges::none_of(task.tools, is_named)) {
    throw bad_field("tool_choice", "there is no tool \"{}\"", name);
  }
  task.must_call = true;
  task.forced_tool = name;
}

void read_tool_choice(Fields& fields, ChatTask& task) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") return forbid_calls(task);
  if (*choice == "required") return force_call(task, "");
  if (!choice->is_object()) {
    throw bad_field("tool_choice",
                    "must be \"auto\", \"none\", \"required\" or an object that names a function");
  }
  Fields inner(*choice, "tool_choice");
  if (const std::string type = inner.required_text("type"); type != "function") {
    throw bad_field(inner.path("type"), "\"{}\" is not supported; use \"function\"", type);
  }
  if (const Json* function = inner.object("function")) {
    Fields named(*function, inner.path("function"));
    force_call(task, named.required_text("name"));
    named.done();
  } else {
    force_call(task, inner.required_text("name"));
  }
  inner.done();
}

void set_template_variables(ChatTask& task, const Json& variables) {
  for (const auto& [name, value] : variables.items()) {
    if (name == "messages" || name == "tools" || name == "documents" || name == "add_generation_prompt") {
      throw bad_field("chat_template_kwargs", "\"{}\" has a field of its own", name);
    }
    task.inputs.kwargs[name] = value;
  }
}

void set_if_used(ChatTask& task, const ServedModel& model, const std::string& variable, const Json& value,
                 const std::string& field) {
  if (!model.template_reads(variable)) {
    throw ApiError(400, "unsupported_field",
                   fmt::format("{}: this model's chat template has no {}", field, variable), field);
  }
  task.inputs.kwargs[variable] = value;
}

namespace {

void constrain(ChatTask& task, const ServedModel& model, const std::string& prompt) {
  text::AnswerForm form{.content = {},
                        .tools = task.tools,
                        .must_call = task.must_call,
                        .in_reasoning = task.starts_in_reasoning,
                        .reasoned = text::prompt_closes_reasoning(model.format, prompt)};
  if (!task.forced_tool.empty()) {
    std::erase_if(form.tools, [&](const text::ToolSchema& tool) { return tool.name != task.forced_tool; });
  }
  task.request.grammar = constrain_answer(task.content, std::move(form), model);
  if (task.request.grammar != nullptr && task.continue_final_message) {
    throw bad_field("messages",
                    "an answer that is begun already cannot be constrained; end with another role");
  }
}

}  // namespace

void prepare(ChatTask& task, const ServedModel& model) {
  if (!model.text->chat_template().has_text("developer")) {  // OpenAI's newer name of the system role
    for (Json& message : task.inputs.messages) {
      if (message.is_object() && message.contains("role") && message["role"] == "developer")
        message["role"] = "system";
    }
  }
  TextModel::ChatPrompt prompt;
  try {
    prompt = model.text->render_chat(task.inputs, task.continue_final_message);
  } catch (const text::TemplateError& e) {
    throw ApiError(400, "template_error",
                   (e.raised() ? "messages: the chat template refuses them: " : "messages: ") + e.message(),
                   "messages");
  } catch (const Error& e) {
    throw from_error(e);
  }
  task.starts_in_reasoning = text::prompt_opens_reasoning(model.format, prompt.text);
  constrain(task, model, prompt.text);
  task.request.max_tokens = clamp_tokens(task.max_tokens, static_cast<int64_t>(prompt.ids.size()), model);
  task.request.prompt = std::move(prompt.ids);
  if (task.request.sampling.ignore_eos) return;
  std::vector<int32_t>& stop_ids = task.request.sampling.stop_ids;
  stop_ids.insert(stop_ids.end(), model.turn_end_ids.begin(), model.turn_end_ids.end());
}

SampleReader::SampleReader(const ServedModel& model, const ChatTask& task)
    : parser_(
          text::make_response_parser(model.format, {.tools = task.tools,
                                                    .parse_tools = task.parse_tools && !task.tools.empty(),
                                                    .starts_in_reasoning = task.starts_in_reasoning})),
      parallel_tools_(task.parallel_tools) {
  if (!model.visible_ids.empty()) {
    visible_.emplace(model.tokenizer(), model.visible_ids, task.request.stop, task.show_stop,
                     task.request.sampling.min_tokens);
  }
}

std::vector<text::ResponseEvent> SampleReader::take(const OutputDelta& delta) {
  std::vector<text::ResponseEvent> events;
  if (satisfied_) return events;
  keep(events, parser_->push(visible_ ? visible_->take(delta) : delta.text));
  if (delta.finish && !satisfied_) keep(events, parser_->finish());
  return events;
}

void SampleReader::keep(std::vector<text::ResponseEvent>& events, std::vector<text::ResponseEvent>&& more) {
  for (text::ResponseEvent& event : more) {
    if (event.kind == text::ResponseEvent::Kind::tool_start && ++calls_ > 1 && !parallel_tools_)
      satisfied_ = true;
    if (satisfied_) return;
    events.push_back(std::move(event));
  }
}

const char* SampleReader::finish_reason(FinishReason reason) const {
  if (reason == FinishReason::length) return "length";
  return called_tools() ? "tool_calls" : "stop";
}

std::string token_text(const ServedModel& model, int32_t id) {
  if (!model.text->has_tokenizer()) return std::to_string(id);
  return text::repair_utf8(model.text->tokenizer().token_bytes(id));
}

double finite_logprob(float logprob) { return logprob >= -9999.0f ? static_cast<double>(logprob) : -9999.0; }

bool ends_text(const ServedModel& model, const SamplingParams& sampling, int32_t id) {
  const auto has = [id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  return has(sampling.stop_ids) || (!sampling.ignore_eos && has(model.text->eos_ids()));
}

Json chat_logprobs(const ServedModel& model, const OutputDelta& delta, const SamplingParams& sampling) {
  Json content = Json::array();
  const auto entry = [&](const TokenLogprob& e) {
    const std::string_view bytes =
        model.text->has_tokenizer() ? model.text->tokenizer().token_bytes(e.id) : "";
    Json list = Json::array();
    for (const char byte : bytes) list.push_back(static_cast<uint8_t>(byte));
    return Json{{"token", token_text(model, e.id)},
                {"logprob", finite_logprob(e.logprob)},
                {"bytes", std::move(list)}};
  };
  for (const auto& entries : delta.logprobs) {
    if (ends_text(model, sampling, entries.front().id)) continue;
    Json item = entry(entries.front());
    item["top_logprobs"] = Json::array();
    for (size_t i = 1; i < entries.size(); ++i) item["top_logprobs"].push_back(entry(entries[i]));
    content.push_back(std::move(item));
  }
  return content;
}

std::string call_id(const ServedModel& model, const text::ResponseEvent& event) {
  if (!event.tool_id.empty()) return event.tool_id;
  return text::tool_call_id(model.format, event.tool_index, event.tool_name, random_number());
}

std::string make_id(const char* prefix) {
  return fmt::format("{}{:016x}{:08x}", prefix, random_number(), random_number() >> 32);
}

int64_t unix_seconds() { return static_cast<int64_t>(std::time(nullptr)); }

}  // namespace atom::server
