#include "server/messages_api.h"

#include <fmt/format.h>

#include "server/chat_task.h"
#include "server/generate_fields.h"
#include "server/openai_form.h"

namespace atom::server {
namespace {

using text::ResponseEvent;

// ---- the request: Anthropic's blocks become the messages that chat templates know ----

std::string block_text(Fields& block) {
  std::string text = block.required_text("text");
  block.harmless({"cache_control", "citations"});  // prefixes are cached without being asked to
  block.done();
  return text;
}

// A string, or text blocks joined.
std::string text_of(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw bad_field(path, "must be a string or a list of blocks");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields block(content[i], fmt::format("{}[{}]", path, i));
    if (const std::string type = block.required_text("type"); type != "text") {
      throw bad_field(block.path("type"), "\"{}\" is not supported here; use text", type);
    }
    text += block_text(block);
  }
  return text;
}

void add_tool_result(Fields& block, Json& messages) {
  Json message = {{"role", "tool"}, {"tool_call_id", block.required_text("tool_use_id")}, {"content", ""}};
  const bool failed = block.boolean("is_error").value_or(false);
  if (const Json* content = block.find("content"))
    message["content"] = text_of(*content, block.path("content"));
  // The templates have no mark for a failure: it is said in words.
  if (failed) message["content"] = "Error: " + message["content"].get<std::string>();
  block.harmless({"cache_control"});
  block.done();
  messages.push_back(std::move(message));
}

Json tool_call_of(Fields& block) {
  Json call = {{"id", block.required_text("id")}, {"type", "function"}};
  const std::string name = block.required_text("name");
  const Json* input = block.object("input");
  call["function"] = {{"name", name}, {"arguments", input == nullptr ? Json::object() : *input}};
  block.harmless({"cache_control"});
  block.done();
  return call;
}

void add_message(const Json& value, const std::string& path, Json& messages) {
  Fields fields(value, path);
  const std::string role = fields.required_text("role");
  if (role != "user" && role != "assistant")
    throw bad_field(fields.path("role"), "must be user or assistant");
  const Json* content = fields.find("content");
  if (content == nullptr)
    throw ApiError(400, "missing_field", fields.path("content") + ": is required", "messages");
  fields.done();
  if (content->is_string()) {
    messages.push_back({{"role", role}, {"content", *content}});
    return;
  }
  if (!content->is_array()) throw bad_field(path + ".content", "must be a string or a list of blocks");
  std::string text, reasoning;
  Json calls = Json::array();
  for (size_t i = 0; i < content->size(); ++i) {
    Fields block((*content)[i], fmt::format("{}.content[{}]", path, i));
    const std::string type = block.required_text("type");
    if (type == "text") {
      text += block_text(block);
    } else if (type == "tool_result" && role == "user") {
      add_tool_result(block, messages);
    } else if (type == "tool_use" && role == "assistant") {
      calls.push_back(tool_call_of(block));
    } else if (type == "thinking" && role == "assistant") {
      reasoning += block.required_text("thinking");
      block.harmless({"signature"});
      block.done();
    } else {
      throw bad_field(block.path("type"), "\"{}\" is not supported in a {} message", type, role);
    }
  }
  if (role == "user" && text.empty() && !messages.empty() && messages.back()["role"] == "tool") return;
  Json message = {{"role", role}, {"content", text}};
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  messages.push_back(std::move(message));
}

void read_tools(Fields& fields, const ServedModel& model, ChatTask& task) {
  if (const Json* tools = fields.array("tools", 256)) {
    Json functions = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      Fields tool((*tools)[i], fmt::format("tools[{}]", i));
      if (const auto type = tool.text("type"); type && *type != "custom") {
        throw bad_field(tool.path("type"), "\"{}\" is not supported; give name and input_schema", *type);
      }
      Json function = {{"name", tool.required_text("name")}};
      if (const auto description = tool.text("description")) function["description"] = *description;
      const Json* schema = tool.object("input_schema");
      if (schema == nullptr)
        throw ApiError(400, "missing_field", tool.path("input_schema") + ": is required", "tools");
      function["parameters"] = *schema;
      if (const auto strict = tool.boolean("strict")) function["strict"] = *strict;
      tool.harmless({"cache_control"});
      tool.done();
      functions.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    set_tools(task, model, functions);
  }
  const Json* choice = fields.object("tool_choice");
  if (choice == nullptr) return;
  Fields inner(*choice, "tool_choice");
  const std::string type = inner.required_text("type");
  task.parallel_tools = !inner.boolean("disable_parallel_tool_use").value_or(false);
  if (type == "none") {
    forbid_calls(task);
  } else if (type == "any") {
    force_call(task, "");
  } else if (type == "tool") {
    force_call(task, inner.required_text("name"));
  } else if (type != "auto") {
    throw bad_field("tool_choice.type", "\"{}\" is not supported; use auto, any, tool or none", type);
  }
  inner.done();
}

void read_thinking(Fields& fields, const ServedModel& model, ChatTask& task) {
  const Json* thinking = fields.object("thinking");
  if (thinking == nullptr) return;
  Fields inner(*thinking, "thinking");
  const std::string type = inner.required_text("type");
  if (type == "enabled") {
    throw bad_field(
        "thinking.type",
        "\"enabled\" comes with a budget, which cannot be kept; use \"adaptive\" or \"disabled\"");
  }
  if (type != "adaptive" && type != "disabled")
    throw bad_field("thinking.type", "must be adaptive or disabled");
  inner.done();
  const bool on = type == "adaptive";
  if (model.template_reads("enable_thinking")) {
    task.inputs.kwargs["enable_thinking"] = on;
  } else if (on) {
    throw ApiError(400, "unsupported_field", "thinking: this model's chat template has no switch for it",
                   "thinking");
  }
}

// What both endpoints read.
ChatTask read_conversation(Fields& fields, const ServedModel& model) {
  model.check_name(fields.required_text("model"));
  ChatTask task = new_task(model);
  Json messages = Json::array();
  if (const Json* system = fields.find("system")) {
    messages.push_back({{"role", "system"}, {"content", text_of(*system, "system")}});
  }
  const Json* list = fields.array("messages", 10000);
  if (list == nullptr || list->empty())
    throw ApiError(400, "missing_field", "messages: at least one is required", "messages");
  for (size_t i = 0; i < list->size(); ++i) add_message((*list)[i], fmt::format("messages[{}]", i), messages);
  // A final assistant message is the beginning of the answer.
  const Json& last = messages.back();
  task.continue_final_message = last["role"] == "assistant" && !last.contains("tool_calls");
  task.inputs.add_generation_prompt = !task.continue_final_message;
  task.inputs.messages = std::move(messages);
  read_tools(fields, model, task);
  read_thinking(fields, model, task);
  if (const Json* output = fields.object("output_config")) {
    Fields inner(*output, "output_config");
    if (const Json* format = inner.object("format")) {
      task.content = read_format(*format, "output_config.format");
    }
    inner.done();
  }
  return task;
}

// ---- the answer ----

class MessagesWriter : public AnswerWriter {
 public:
  MessagesWriter(const ServedModel& model, const ChatTask& task, bool stream)
      : model_(model),
        sampling_(task.request.sampling),
        stops_(task.request.stop),
        stream_(stream),
        reader_(model, task) {
    usage_.prompt_tokens = static_cast<int64_t>(task.request.prompt.size());
  }

  bool streams() const override { return stream_; }

  void begin(std::string& out) override {
    append_event(out, "message_start", {{"type", "message_start"}, {"message", message(Json::array())}});
    append_event(out, "ping", {{"type", "ping"}});
  }

  void take(size_t, OutputDelta&& delta, std::string& out) override {
    if (delta.finish) usage_ = delta.usage;  // comes after what the reader needed, too
    if (finish_) return;
    if (delta.finish == FinishReason::stop) take_stop(delta);
    for (const ResponseEvent& event : reader_.take(delta)) apply(event, out);
    if (reader_.satisfied()) delta.finish = FinishReason::stop;
    if (delta.finish) finish_ = delta.finish;
  }

  void end(std::string& out) override {
    close_block(out);
    if (!stream_) {
      out += dump(message(blocks_));
      return;
    }
    append_event(out, "message_delta",
                 {{"type", "message_delta"},
                  {"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}},
                  {"usage", usage()}});
    append_event(out, "message_stop", {{"type", "message_stop"}});
  }

  std::string error(const ApiError& error, bool begun) override {
    return error_answer(error.anthropic_body(), begun);
  }

  bool satisfied() const override { return finish_.has_value(); }

 private:
  // The engine keeps the matched stop text, so that it can be told which one it was: the longest that the
  // text ends with, for that one began first.
  void take_stop(OutputDelta& delta) {
    if (!delta.token_ids.empty() && ends_text(model_, sampling_, delta.token_ids.back())) return;
    for (const std::string& stop : stops_) {
      if (delta.text.ends_with(stop) && stop.size() > stop_.size()) stop_ = stop;
    }
    delta.text.resize(delta.text.size() - stop_.size());
  }

  void apply(const ResponseEvent& event, std::string& out) {
    switch (event.kind) {
      case ResponseEvent::Kind::content:
        open_block("text", {{"type", "text"}, {"text", ""}}, out);
        return add(event.text, "text", "text_delta", "text", out);
      case ResponseEvent::Kind::reasoning:
        open_block("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
        return add(event.text, "thinking", "thinking_delta", "thinking", out);
      case ResponseEvent::Kind::tool_start:
        close_block(out);
        open_block("tool_use",
                   {{"type", "tool_use"},
                    {"id", call_id(model_, event)},
                    {"name", event.tool_name},
                    {"input", Json::object()}},
                   out);
        arguments_ = event.text;
        return;
      case ResponseEvent::Kind::tool_arguments:
        arguments_ += event.text;
        if (stream_) send_delta({{"type", "input_json_delta"}, {"partial_json", event.text}}, out);
        return;
    }
  }

  void open_block(const char* type, Json block, std::string& out) {
    if (open_ == type) return;
    close_block(out);
    open_ = type;
    if (stream_) {
      append_event(out, "content_block_start",
                   {{"type", "content_block_start"}, {"index", blocks_.size()}, {"content_block", block}});
    }
    blocks_.push_back(std::move(block));
  }
  void close_block(std::string& out) {
    if (open_.empty()) return;
    if (open_ == "tool_use") {
      // The input is an object; what the model wrote otherwise is kept as text.
      Json input = Json::parse(arguments_.empty() ? "{}" : arguments_, nullptr, false);
      blocks_.back()["input"] = input.is_object() ? std::move(input) : Json{{"arguments", arguments_}};
    }
    open_.clear();
    if (stream_) {
      append_event(out, "content_block_stop",
                   {{"type", "content_block_stop"}, {"index", blocks_.size() - 1}});
    }
  }
  void add(const std::string& text, const char* key, const char* delta_type, const char* delta_key,
           std::string& out) {
    blocks_.back()[key].get_ref<std::string&>() += text;
    if (stream_) send_delta({{"type", delta_type}, {delta_key, text}}, out);
  }
  void send_delta(Json delta, std::string& out) const {
    append_event(
        out, "content_block_delta",
        {{"type", "content_block_delta"}, {"index", blocks_.size() - 1}, {"delta", std::move(delta)}});
  }

  Json stop_reason() const {
    if (!finish_) return nullptr;
    if (reader_.called_tools() && *finish_ != FinishReason::length) return "tool_use";
    if (!stop_.empty()) return "stop_sequence";
    return *finish_ == FinishReason::length ? "max_tokens" : "end_turn";
  }
  Json stop_sequence() const { return stop_.empty() ? Json(nullptr) : Json(stop_); }
  Json usage() const {
    return {{"input_tokens", usage_.prompt_tokens - usage_.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage_.cached_tokens},
            {"output_tokens", usage_.output_tokens}};
  }
  Json message(const Json& content) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_.name()},
            {"content", content},
            {"stop_reason", stop_reason()},
            {"stop_sequence", stop_sequence()},
            {"usage", usage()}};
  }

  const ServedModel& model_;
  const SamplingParams sampling_;
  const std::vector<std::string> stops_;
  const bool stream_;
  const std::string id_ = make_id("msg_");
  SampleReader reader_;
  Json blocks_ = Json::array();
  std::string open_;       // type of the last block, while it grows
  std::string arguments_;  // of an open tool_use block
  std::string stop_;
  std::optional<FinishReason> finish_;
  Usage usage_;
};

}  // namespace

GenerationPlan plan_messages(const Json& body, const ServedModel& model) {
  Fields fields(body);
  ChatTask task = read_conversation(fields, model);
  task.max_tokens = fields.integer("max_tokens", 1, INT64_MAX);
  if (!task.max_tokens) throw ApiError(400, "missing_field", "max_tokens: is required", "max_tokens");
  SamplingParams& sampling = task.request.sampling;
  sampling = model.default_sampling;
  if (const auto t = fields.number("temperature", 0, 1)) sampling.temperature = static_cast<float>(*t);
  if (const auto p = fields.number("top_p", 0, 1)) sampling.top_p = static_cast<float>(*p);
  if (const auto k = fields.integer("top_k", 0, INT32_MAX)) sampling.top_k = static_cast<int32_t>(*k);
  task.request.stop = read_stops(fields, "stop_sequences");
  task.request.include_stop = true;  // the writer takes it off again
  task.deadline_us = read_deadline(fields);
  const bool stream = fields.boolean("stream").value_or(false);
  fields.harmless({"metadata"});
  fields.done();
  prepare(task, model);

  GenerationPlan plan;
  plan.writer = std::make_unique<MessagesWriter>(model, task, stream);
  plan.deadline_us = task.deadline_us;
  plan.requests.push_back(std::move(task.request));
  return plan;
}

Json count_message_tokens(const Json& body, const ServedModel& model) {
  Fields fields(body);
  ChatTask task = read_conversation(fields, model);
  fields.done();
  prepare(task, model);
  return {{"input_tokens", task.request.prompt.size()}};
}

}  // namespace atom::server
