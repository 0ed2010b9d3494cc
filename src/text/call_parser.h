// Finds tool calls in the text behind the reasoning: what the syntaxes have in common.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/event_sink.h"
#include "text/json_scanner.h"
#include "text/response_format.h"
#include "text/text_feed.h"

namespace atom::text {

// Names beyond this are not taken for names.
inline constexpr size_t kMaxCallName = 256;

class CallParser {
 public:
  virtual ~CallParser() = default;
  void push(std::string_view text);
  void finish();

 protected:
  explicit CallParser(EventSink& sink) : sink_(sink) {}

  // Consumes text or changes state; false if it needs more text. Once feed_ is closed it must come to consume
  // all.
  virtual bool step() = 0;

  // Emits text up to the next of `markers` as content. The index of the marker that now stands at the front,
  // or -1.
  int content_until(std::span<const std::string_view> markers);

  // An attempt: from here on text may turn out to be a call. `opener` bytes at the front raised the
  // suspicion.
  void begin_attempt(size_t opener);
  // It is one: its name is out, and the text so far is not content.
  void start_call(std::string_view name, std::string_view id = {});
  // It is none: the opener is content, and the text behind it is looked at again.
  void fail_attempt();

  void content(std::string_view text);  // white space at its end waits: beside a call it is dropped
  void drop_space() { space_.clear(); }
  void skip_space() { feed_.consume(feed_.space()); }
  // White space that is content unless a marker of calls or the end of the text follows.
  void hold_space() { content(feed_.take(feed_.space())); }
  // If `marker` stands at the front, or as much of it as there is when the text ends: consumes it, and drops
  // white space that was held before it. For markers that end a call.
  TextFeed::Seen accept(std::string_view marker);

  // Passes the arguments of the started call on: a JSON object. `more` if the text is used up; on `bad` the
  // byte at the front is the first that does not fit.
  void begin_arguments() { arguments_ = ArgumentStream(); }
  JsonScanner::Status pass_arguments();

  TextFeed feed_;
  EventSink& sink_;

 private:
  ArgumentStream arguments_;
  std::string space_;
  size_t opener_ = 0;
  bool after_call_ = false;  // no content since the last call
};

// No calls: all text is content, at once.
std::unique_ptr<CallParser> make_plain_text(EventSink& sink);
// Calls that are JSON objects with the name inside: hermes, llama3_json, mistral, mistral_args.
std::unique_ptr<CallParser> make_envelope_calls(ResponseFormat format, EventSink& sink);
// Calls with the name before a JSON object: deepseek_v3, deepseek_v31, kimi_k2.
std::unique_ptr<CallParser> make_header_calls(ResponseFormat format, EventSink& sink);
// Calls with one tag per argument: qwen3_coder, deepseek_v32, glm45.
std::unique_ptr<CallParser> make_markup_calls(ResponseFormat format, const std::vector<ToolSchema>& tools,
                                              EventSink& sink);

}  // namespace atom::text
