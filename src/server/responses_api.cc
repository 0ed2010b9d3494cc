#include "server/responses_api.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/chat_task.h"
#include "server/generate_fields.h"
#include "server/openai_form.h"
#include "server/responses_input.h"

namespace atom::server {
namespace {

using text::ResponseEvent;

ApiError not_stored(const std::string& id) {
  return ApiError(404, "response_not_found", fmt::format("there is no stored response \"{}\"", id));
}

ApiError unknown_response(const std::string& id) {
  return ApiError(404, "response_not_found",
                  fmt::format("previous_response_id: there is no stored response \"{}\"", id),
                  "previous_response_id");
}

void read_tools(Fields& fields, const ServedModel& model, ChatTask& task) {
  if (const Json* tools = fields.array("tools", 256)) {
    Json functions = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      Fields tool((*tools)[i], fmt::format("tools[{}]", i));
      if (const std::string type = tool.required_text("type"); type != "function") {
        throw bad_field(tool.path("type"), "\"{}\" is not supported; only function is", type);
      }
      Json function = {{"name", tool.required_text("name")}};
      if (const auto text = tool.text("description")) function["description"] = *text;
      if (const Json* parameters = tool.object("parameters")) function["parameters"] = *parameters;
      if (const auto strict = tool.boolean("strict")) function["strict"] = *strict;
      tool.done();
      functions.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    set_tools(task, model, functions);
  }
  if (const auto parallel = fields.boolean("parallel_tool_calls")) task.parallel_tools = *parallel;
  read_tool_choice(fields, task);
}

void read_text_format(Fields& fields, ChatTask& task) {
  const Json* text = fields.object("text");
  if (text == nullptr) return;
  Fields inner(*text, "text");
  if (const Json* format = inner.object("format")) task.content = read_format(*format, "text.format");
  inner.done();
}

void read_reasoning(Fields& fields, const ServedModel& model, ChatTask& task) {
  const Json* reasoning = fields.object("reasoning");
  if (reasoning == nullptr) return;
  Fields inner(*reasoning, "reasoning");
  if (const auto effort = inner.text("effort")) {
    set_if_used(task, model, "reasoning_effort", *effort, "reasoning.effort");
  }
  inner.only("summary", nullptr, "reasoning is given whole, not summed up; leave it out");
  inner.done();
}

struct Stored {
  ResponseStore* store = nullptr;  // null: not to be stored
  std::string key;
  Json messages;  // the conversation before the answer, without instructions
};

class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(const ServedModel& model, const ChatTask& task, bool stream, Json echoed, Stored stored)
      : model_(model),
        stream_(stream),
        echoed_(std::move(echoed)),
        stored_(std::move(stored)),
        reader_(model, task) {}

  bool streams() const override { return stream_; }

  void begin(std::string& out) override {
    event(out, "response.created", {{"response", response("in_progress")}});
    event(out, "response.in_progress", {{"response", response("in_progress")}});
  }

  void take(size_t, OutputDelta&& delta, std::string& out) override {
    if (delta.finish) usage_ = delta.usage;  // comes after what the reader needed, too
    if (finish_) return;
    for (const ResponseEvent& news : reader_.take(delta)) apply(news, out);
    if (reader_.satisfied()) delta.finish = FinishReason::stop;
    if (delta.finish) finish_ = delta.finish;
  }

  void end(std::string& out) override {
    close_item(out);
    const bool complete = *finish_ != FinishReason::length;
    Json whole = response(complete ? "completed" : "incomplete");
    if (stored_.store != nullptr) {
      Json messages = stored_.messages;
      add_response_input(output_, messages);
      stored_.store->put(id_, {whole, std::move(messages), stored_.key});
    }
    if (stream_) {
      event(out, complete ? "response.completed" : "response.incomplete", {{"response", std::move(whole)}});
    } else {
      out += dump(whole);
    }
  }

  std::string error(const ApiError& error, bool begun) override {
    if (!begun) return dump(error.openai_body());
    std::string out;
    Json failed = response("failed");
    failed["error"] = {{"code", error.code}, {"message", error.message}};
    event(out, "response.failed", {{"response", std::move(failed)}});
    return out;
  }

  bool satisfied() const override { return finish_.has_value(); }

 private:
  void apply(const ResponseEvent& news, std::string& out) {
    switch (news.kind) {
      case ResponseEvent::Kind::content:
        open_item("message", out);
        text_ += news.text;
        return part_event(out, "response.output_text.delta",
                          {{"delta", news.text}, {"logprobs", Json::array()}});
      case ResponseEvent::Kind::reasoning:
        open_item("reasoning", out);
        text_ += news.text;
        return part_event(out, "response.reasoning_text.delta", {{"delta", news.text}});
      case ResponseEvent::Kind::tool_start:
        close_item(out);
        open_item("function_call", out, news.tool_name, call_id(model_, news));
        text_ = news.text;
        return;
      case ResponseEvent::Kind::tool_arguments:
        text_ += news.text;
        return item_event(out, "response.function_call_arguments.delta", {{"delta", news.text}});
    }
  }

  void open_item(const std::string& type, std::string& out, const std::string& tool = {},
                 const std::string& call = {}) {
    if (open_ == type) return;
    close_item(out);
    open_ = type;
    text_.clear();
    Json item;
    if (type == "message") {
      item = {{"id", make_id("msg_")},
              {"type", type},
              {"status", "in_progress"},
              {"role", "assistant"},
              {"content", Json::array()}};
    } else if (type == "reasoning") {
      item = {{"id", make_id("rs_")},
              {"type", type},
              {"summary", Json::array()},
              {"content", Json::array()},
              {"status", "in_progress"}};
    } else {
      item = {{"id", make_id("fc_")}, {"type", type}, {"status", "in_progress"},
              {"call_id", call},      {"name", tool}, {"arguments", ""}};
    }
    event(out, "response.output_item.added", {{"output_index", output_.size()}, {"item", item}});
    output_.push_back(std::move(item));
    if (type == "message") part_event(out, "response.content_part.added", {{"part", part()}});
    if (type == "reasoning") part_event(out, "response.content_part.added", {{"part", part()}});
  }

  void close_item(std::string& out) {
    if (open_.empty()) return;
    Json& item = output_.back();
    if (open_ == "function_call") {
      item["arguments"] = text_;
      item_event(out, "response.function_call_arguments.done",
                 {{"name", item["name"]}, {"arguments", text_}});
    } else {
      const bool message = open_ == "message";
      if (!message) {
        reasoning_tokens_ +=
            static_cast<int64_t>(model_.tokenizer().encode(text_, {.add_special_tokens = false}).size());
      }
      Json text = {{"text", text_}};
      if (message) text["logprobs"] = Json::array();
      part_event(out, message ? "response.output_text.done" : "response.reasoning_text.done",
                 std::move(text));
      part_event(out, "response.content_part.done", {{"part", part()}});
      item["content"].push_back(part());
    }
    item["status"] = finish_ == FinishReason::length ? "incomplete" : "completed";
    event(out, "response.output_item.done", {{"output_index", output_.size() - 1}, {"item", item}});
    open_.clear();
  }

  // The part of the open item, as far as it has come.
  Json part() const {
    if (open_ == "reasoning") return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"},
            {"text", text_},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }

  void event(std::string& out, const char* type, Json data) {
    if (!stream_) return;
    Json whole = {{"type", type}, {"sequence_number", sequence_++}};
    whole.update(data);
    append_event(out, type, whole);
  }
  void item_event(std::string& out, const char* type, Json data) {
    Json whole = {{"item_id", output_.back()["id"]}, {"output_index", output_.size() - 1}};
    whole.update(data);
    event(out, type, std::move(whole));
  }
  void part_event(std::string& out, const char* type, Json data) {
    data["content_index"] = 0;
    item_event(out, type, std::move(data));
  }

  Json response(const char* status) const {
    Json result = {{"id", id_},        {"object", "response"}, {"created_at", created_},
                   {"status", status}, {"error", nullptr},     {"incomplete_details", nullptr}};
    if (finish_ == FinishReason::length) result["incomplete_details"] = {{"reason", "max_output_tokens"}};
    result.update(echoed_);
    result["output"] = output_;
    result["usage"] = nullptr;
    if (finish_) {
      result["usage"] = {{"input_tokens", usage_.prompt_tokens},
                         {"input_tokens_details", {{"cached_tokens", usage_.cached_tokens}}},
                         {"output_tokens", usage_.output_tokens},
                         {"output_tokens_details",
                          {{"reasoning_tokens", std::min(reasoning_tokens_, usage_.output_tokens)}}},
                         {"total_tokens", usage_.prompt_tokens + usage_.output_tokens}};
    }
    return result;
  }

  const ServedModel& model_;
  const bool stream_;
  const Json echoed_;  // of the request
  const Stored stored_;
  const std::string id_ = make_id("resp_");
  const int64_t created_ = unix_seconds();
  SampleReader reader_;
  Json output_ = Json::array();
  std::string open_;  // type of the last item, while it grows
  std::string text_;  // of it
  int64_t sequence_ = 0;
  std::optional<FinishReason> finish_;
  Usage usage_;
  int64_t reasoning_tokens_ = 0;  // of the text: several ways to write it count as one
};

}  // namespace

GenerationPlan plan_response(const Json& body, const ServedModel& model, ResponseStore& store,
                             const std::string& key) {
  Fields fields(body);
  model.check_name(fields.required_text("model"));
  ChatTask task = new_task(model);
  Stored stored{.store = fields.boolean("store").value_or(true) ? &store : nullptr,
                .key = key,
                .messages = Json::array()};
  const std::optional<std::string> previous = fields.text("previous_response_id");
  if (previous) {
    std::optional<ResponseStore::Entry> entry = store.get(*previous, key);
    if (!entry) throw unknown_response(*previous);
    stored.messages = std::move(entry->messages);
  }
  const Json* input = fields.find("input");
  if (input == nullptr) throw ApiError(400, "missing_field", "input: is required", "input");
  add_response_input(*input, stored.messages);
  if (stored.messages.empty()) throw bad_field("input", "is empty");
  const std::optional<std::string> instructions = fields.text("instructions");
  task.inputs.messages = Json::array();
  if (instructions) task.inputs.messages.push_back({{"role", "system"}, {"content", *instructions}});
  for (const Json& message : stored.messages) task.inputs.messages.push_back(message);

  SamplingParams& sampling = task.request.sampling;
  sampling = model.default_sampling;
  if (const auto t = fields.number("temperature", 0, 2)) sampling.temperature = static_cast<float>(*t);
  if (const auto p = fields.number("top_p", 0, 1)) sampling.top_p = static_cast<float>(*p);
  task.max_tokens = fields.integer("max_output_tokens", 1, INT64_MAX);
  task.deadline_us = read_deadline(fields);
  const bool stream = fields.boolean("stream").value_or(false);
  read_tools(fields, model, task);
  read_text_format(fields, task);
  read_reasoning(fields, model, task);
  fields.only("truncation", "disabled", "input is never cut; use \"disabled\"");
  fields.only("background", false, "answers are given at once; leave it out");
  fields.only("include", Json::array(), "nothing more can be included");
  fields.only("top_logprobs", 0, "is not supported here; use /v1/chat/completions");
  fields.harmless({"user", "metadata", "safety_identifier", "prompt_cache_key"});
  if (const auto tier = fields.text("service_tier"); tier && *tier != "auto" && *tier != "default") {
    throw bad_field("service_tier", "only \"auto\" and \"default\" are supported");
  }
  fields.done();
  prepare(task, model);

  const Json echoed = {{"model", model.name()},
                       {"instructions", instructions ? Json(*instructions) : Json(nullptr)},
                       {"previous_response_id", previous ? Json(*previous) : Json(nullptr)},
                       {"max_output_tokens", task.max_tokens ? Json(*task.max_tokens) : Json(nullptr)},
                       {"temperature", sampling.temperature},
                       {"top_p", sampling.top_p},
                       {"tools", body.value("tools", Json::array())},
                       {"tool_choice", body.value("tool_choice", Json("auto"))},
                       {"parallel_tool_calls", task.parallel_tools},
                       {"store", stored.store != nullptr},
                       {"text", body.value("text", Json{{"format", {{"type", "text"}}}})},
                       {"truncation", "disabled"},
                       {"metadata", body.value("metadata", Json::object())}};
  GenerationPlan plan;
  plan.writer = std::make_unique<ResponsesWriter>(model, task, stream, echoed, std::move(stored));
  plan.deadline_us = task.deadline_us;
  plan.requests.push_back(std::move(task.request));
  return plan;
}

Json stored_response(const std::string& id, const ResponseStore& store, const std::string& key) {
  std::optional<ResponseStore::Entry> entry = store.get(id, key);
  if (!entry) throw not_stored(id);
  return std::move(entry->response);
}

Json delete_response(const std::string& id, ResponseStore& store, const std::string& key) {
  if (!store.remove(id, key)) throw not_stored(id);
  return {{"id", id}, {"object", "response"}, {"deleted", true}};
}

}  // namespace atom::server
