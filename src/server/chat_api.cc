#include "server/chat_api.h"

#include "server/chat_task.h"
#include "server/generate_fields.h"
#include "server/openai_form.h"

namespace atom::server {
namespace {

using text::ResponseEvent;

void read_tools(Fields& fields, const ServedModel& model, ChatTask& task) {
  if (const Json* tools = fields.find("tools")) set_tools(task, model, *tools);
  if (const auto parallel = fields.boolean("parallel_tool_calls")) task.parallel_tools = *parallel;
  read_tool_choice(fields, task);
}

void read_lengths(Fields& fields, ChatTask& task) {
  const auto old_name = fields.integer("max_tokens", 1, INT64_MAX);
  const auto new_name = fields.integer("max_completion_tokens", 1, INT64_MAX);
  if (old_name && new_name && *old_name != *new_name) {
    throw bad_field("max_tokens", "differs from max_completion_tokens; give one of them");
  }
  task.max_tokens = new_name ? new_name : old_name;
}

void read_template_fields(Fields& fields, const ServedModel& model, ChatTask& task) {
  if (const Json* variables = fields.object("chat_template_kwargs")) set_template_variables(task, *variables);
  if (const auto effort = fields.text("reasoning_effort")) {
    set_if_used(task, model, "reasoning_effort", *effort, "reasoning_effort");
  }
  if (const Json* documents = fields.array("documents", 1024)) {
    if (!model.template_reads("documents")) {
      throw ApiError(400, "unsupported_field",
                     "documents: this model's chat template does not take documents", "documents");
    }
    task.inputs.documents = *documents;
  }
  task.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  task.inputs.add_generation_prompt =
      fields.boolean("add_generation_prompt").value_or(!task.continue_final_message);
}

class ChatWriter : public AnswerWriter {
 public:
  ChatWriter(const ServedModel& model, const ChatTask& task, StreamFields stream, bool logprobs)
      : model_(model), sampling_(task.request.sampling), stream_(stream), logprobs_(logprobs) {
    for (int32_t i = 0; i < task.request.n; ++i) choices_.emplace_back(model, task);
  }

  bool streams() const override { return stream_.stream; }

  void begin(std::string& out) override {
    for (size_t i = 0; i < choices_.size(); ++i) {
      send(out, i, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
    }
  }

  void take(size_t, OutputDelta&& delta, std::string& out) override {
    const auto index = static_cast<size_t>(delta.index);
    Choice& choice = choices_[index];
    if (delta.finish) usage_.add(delta.usage, delta.index == 0);  // comes after what the reader needed, too
    if (choice.done) return;
    Json logprobs = nullptr;
    if (logprobs_) logprobs = {{"content", chat_logprobs(model_, delta, sampling_)}, {"refusal", nullptr}};
    for (const ResponseEvent& event : choice.reader.take(delta)) {
      apply(model_, choice, event);
      if (!stream_.stream) continue;
      send(out, index, delta_of(choice, event), std::exchange(logprobs, nullptr), nullptr);
    }
    if (!stream_.stream && !logprobs.is_null()) {
      for (Json& entry : logprobs["content"]) choice.logprobs.push_back(std::move(entry));
    } else if (!logprobs.is_null() && !logprobs["content"].empty()) {
      send(out, index, {{"content", ""}}, std::move(logprobs),
           nullptr);  // text that is held back has no event yet
    }
    if (choice.reader.satisfied()) delta.finish = FinishReason::stop;
    if (!delta.finish) return;
    choice.done = true;
    choice.finish_reason = choice.reader.finish_reason(*delta.finish);
    if (stream_.stream) send(out, index, Json::object(), nullptr, choice.finish_reason);
  }

  void end(std::string& out) override {
    if (stream_.stream) {
      if (stream_.include_usage) {
        Json chunk = chunk_base();
        chunk["choices"] = Json::array();
        chunk["usage"] = usage_.json();
        append_event(out, chunk);
      }
      out += "data: [DONE]\n\n";
      return;
    }
    Json answer = {
        {"id", id_}, {"object", "chat.completion"}, {"created", created_}, {"model", model_.name()}};
    answer["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) answer["choices"].push_back(whole_choice(i));
    answer["usage"] = usage_.json();
    out += dump(answer);
  }

  std::string error(const ApiError& error, bool begun) override {
    return error_answer(error.openai_body(), begun);
  }

  bool satisfied() const override {
    for (const Choice& choice : choices_) {
      if (!choice.done) return false;
    }
    return true;
  }

 private:
  struct Choice {
    Choice(const ServedModel& model, const ChatTask& task) : reader(model, task) {}
    SampleReader reader;
    std::string content, reasoning;
    Json tool_calls = Json::array();
    Json logprobs = Json::array();
    const char* finish_reason = nullptr;
    bool done = false;
  };

  static void apply(const ServedModel& model, Choice& choice, const ResponseEvent& event) {
    switch (event.kind) {
      case ResponseEvent::Kind::content:
        choice.content += event.text;
        break;
      case ResponseEvent::Kind::reasoning:
        choice.reasoning += event.text;
        break;
      case ResponseEvent::Kind::tool_start:
        choice.tool_calls.push_back({{"id", call_id(model, event)},
                                     {"type", "function"},
                                     {"function", {{"name", event.tool_name}, {"arguments", event.text}}}});
        break;
      case ResponseEvent::Kind::tool_arguments: {
        Json& arguments = choice.tool_calls.back()["function"]["arguments"];
        arguments.get_ref<std::string&>() += event.text;
        break;
      }
    }
  }

  static Json delta_of(const Choice& choice, const ResponseEvent& event) {
    const auto index = static_cast<int64_t>(choice.tool_calls.size()) - 1;
    switch (event.kind) {
      case ResponseEvent::Kind::content:
        return {{"content", event.text}};
      case ResponseEvent::Kind::reasoning:
        return {{"reasoning_content", event.text}};
      case ResponseEvent::Kind::tool_start: {
        Json call = choice.tool_calls.back();
        Json entry = {{"index", index}};
        entry.update(call);
        return {{"tool_calls", Json::array({std::move(entry)})}};
      }
      case ResponseEvent::Kind::tool_arguments:
        return {{"tool_calls", Json::array({{{"index", index}, {"function", {{"arguments", event.text}}}}})}};
    }
    return Json::object();
  }

  Json chunk_base() const {
    return {
        {"id", id_}, {"object", "chat.completion.chunk"}, {"created", created_}, {"model", model_.name()}};
  }

  void send(std::string& out, size_t index, Json delta, Json logprobs, const char* finish_reason) const {
    Json chunk = chunk_base();
    chunk["choices"] =
        Json::array({{{"index", index},
                      {"delta", std::move(delta)},
                      {"logprobs", std::move(logprobs)},
                      {"finish_reason", finish_reason == nullptr ? Json(nullptr) : Json(finish_reason)}}});
    if (stream_.include_usage) chunk["usage"] = nullptr;
    append_event(out, chunk);
  }

  Json whole_choice(size_t index) const {
    const Choice& choice = choices_[index];
    Json message = {{"role", "assistant"}, {"content", choice.content}, {"refusal", nullptr}};
    if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
    if (!choice.tool_calls.empty()) {
      message["tool_calls"] = choice.tool_calls;
      if (choice.content.empty()) message["content"] = nullptr;
    }
    return {
        {"index", index},
        {"message", std::move(message)},
        {"logprobs", logprobs_ ? Json{{"content", choice.logprobs}, {"refusal", nullptr}} : Json(nullptr)},
        {"finish_reason", choice.finish_reason}};
  }

  const ServedModel& model_;
  const SamplingParams sampling_;
  const StreamFields stream_;
  const bool logprobs_;
  const std::string id_ = make_id("chatcmpl-");
  const int64_t created_ = unix_seconds();
  std::vector<Choice> choices_;
  UsageSum usage_;
};

}  // namespace

GenerationPlan plan_chat(const Json& body, const ServedModel& model) {
  Fields fields(body);
  model.check_name(fields.required_text("model"));
  ChatTask task = new_task(model);
  const Json* messages = fields.array("messages", 10000);
  if (messages == nullptr) throw ApiError(400, "missing_field", "messages: is required", "messages");
  task.inputs.messages = *messages;
  read_sampling(fields, model, task.request);
  task.show_stop = task.request.include_stop;
  read_lengths(fields, task);
  task.deadline_us = read_deadline(fields);
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (top && !logprobs) throw bad_field("top_logprobs", "goes with logprobs: true");
  if (logprobs) task.request.sampling.logprobs = static_cast<int32_t>(top.value_or(0));
  const StreamFields stream = read_stream_fields(fields);
  read_tools(fields, model, task);
  task.content = read_content(fields);
  read_template_fields(fields, model, task);
  fields.only("modalities", Json::array({"text"}), "only [\"text\"] is supported");
  read_harmless(fields);
  fields.done();
  prepare(task, model);

  GenerationPlan plan;
  plan.writer = std::make_unique<ChatWriter>(model, task, stream, logprobs);
  plan.deadline_us = task.deadline_us;
  plan.requests.push_back(std::move(task.request));
  return plan;
}

}  // namespace atom::server
