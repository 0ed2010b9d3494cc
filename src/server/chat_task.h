// A conversation to be continued, whatever protocol asked for it: the template's inputs, the tools, and how
// the answer is taken apart.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/constrained_output.h"
#include "server/fields.h"
#include "server/served_model.h"
#include "server/visible_text.h"
#include "text/response_parser.h"

namespace atom::server {

struct ChatTask {
  text::ChatTemplateInputs inputs;
  bool continue_final_message = false;
  std::vector<text::ToolSchema> tools;  // also in inputs.tools, as the template wants them
  bool parse_tools = true;
  bool parallel_tools = true;  // false: the answer ends after its first call
  bool must_call = false;
  std::string forced_tool;  // with must_call: the one to be called; "": any
  RequestedContent content;
  bool show_stop = false;  // the stop text that matched stays in the answer
  Request request;         // prompt and max_tokens are filled in by prepare()
  std::optional<int64_t> max_tokens;
  int64_t deadline_us = 0;
  bool starts_in_reasoning = false;
};

// A task with the checkpoint's special tokens. Throws ApiError if the model has no chat template.
ChatTask new_task(const ServedModel& model);

// `tools` in OpenAI's chat form: [{type: "function", function: {name, description, parameters}}].
void set_tools(ChatTask& task, const ServedModel& model, const Json& tools);
// tool_choice none: the tools are not shown to the model and not looked for.
void forbid_calls(ChatTask& task);
// The answer must be a call of the tool `name`; empty: of any one. Throws ApiError if there is none.
void force_call(ChatTask& task, const std::string& name);
// tool_choice in OpenAI's forms, chat's and the responses'.
void read_tool_choice(Fields& fields, ChatTask& task);

// Variables for the template from a client: an object of values.
void set_template_variables(ChatTask& task, const Json& variables);
// Sets a template variable that only means something if the template reads it; else refuses `field`.
void set_if_used(ChatTask& task, const ServedModel& model, const std::string& variable, const Json& value,
                 const std::string& field);

// Renders, tokenizes, sets lengths and compiles what the answer must be. Throws ApiError.
void prepare(ChatTask& task, const ServedModel& model);

// Takes one sample's output apart.
class SampleReader {
 public:
  SampleReader(const ServedModel& model, const ChatTask& task);

  // The events of the delta's text; with its finish, those that were held back too.
  std::vector<text::ResponseEvent> take(const OutputDelta& delta);
  bool called_tools() const { return calls_ > 0; }
  // The sample needs no more tokens: a second call began where one is allowed.
  bool satisfied() const { return satisfied_; }
  // stop, length or tool_calls.
  const char* finish_reason(FinishReason reason) const;

 private:
  void keep(std::vector<text::ResponseEvent>& events, std::vector<text::ResponseEvent>&& more);

  std::unique_ptr<text::ResponseParser> parser_;
  std::optional<VisibleText> visible_;  // replaces the engine's text where the parser must see special tokens
  const bool parallel_tools_;
  int calls_ = 0;
  bool satisfied_ = false;
};

// {token, logprob, bytes, top_logprobs} of each token but one that only ends the text.
Json chat_logprobs(const ServedModel& model, const OutputDelta& delta, const SamplingParams& sampling);
// The text that a token adds, well-formed.
std::string token_text(const ServedModel& model, int32_t id);
// A log-probability that JSON can carry.
double finite_logprob(float logprob);
// True if the id ends this request's texts without being part of them.
bool ends_text(const ServedModel& model, const SamplingParams& sampling, int32_t id);

// The id of a call that an event opens: the model's own, or one in the shape that its template expects.
std::string call_id(const ServedModel& model, const text::ResponseEvent& event);

// "chatcmpl-3f0c...": unique.
std::string make_id(const char* prefix);
int64_t unix_seconds();

}  // namespace atom::server
