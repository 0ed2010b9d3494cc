// From generated text to what an answer consists of: reasoning, content and tool calls.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/response_format.h"

namespace atom::text {

// A function that the request offers. `parameters` is its JSON schema; anything but an object says nothing.
struct ToolSchema {
  std::string name;
  Json parameters;
  bool strict = false;  // its calls must conform to the schema, see call_expr()
};

struct ResponseEvent {
  enum class Kind : uint8_t { reasoning, content, tool_start, tool_arguments } kind;
  std::string text;         // all but tool_start: the next piece
  int tool_index = -1;      // tool events: counts the calls of the answer from 0
  std::string tool_name{};  // tool_start
  std::string tool_id{};    // tool_start: the id that the model itself wrote, if its syntax has one; or ""
  bool operator==(const ResponseEvent&) const = default;
};

struct ResponseParserOptions {
  std::vector<ToolSchema> tools;     // none: markup of calls stays content
  bool parse_tools = true;           // false: likewise (tool_choice none)
  bool starts_in_reasoning = false;  // see prompt_opens_reasoning
};

// One per choice of a response; not thread-safe. Total: whatever the text, there is no exception, time is
// linear and nested JSON is bounded by kMaxJsonDepth.
//
// - Folded together, the events do not depend on how the text was cut.
// - The tool_arguments of a call concatenate to the text of a JSON object, or to a beginning of one if the
// call was
//   cut off or went wrong after its name was out; the part that is not JSON is then content.
// - A call that goes wrong before its name is certain is content, as it stands. No other text is lost than
// the
//   markup of calls and reasoning, the newlines beside reasoning, and the white space beside calls.
// - Names that no tool has are passed on.
//
// Where the prompt already holds the beginning of the answer (a continued message), push that
// first.
class ResponseParser {
 public:
  virtual ~ResponseParser() = default;
  virtual std::vector<ResponseEvent> push(std::string_view text) = 0;
  virtual std::vector<ResponseEvent> finish() = 0;  // end of the text: what was held back; once
};

std::unique_ptr<ResponseParser> make_response_parser(const FormatChoice& format,
                                                     ResponseParserOptions options);

struct ParsedCall {
  std::string name, arguments, id;
  bool operator==(const ParsedCall&) const = default;
};

// The events folded together.
struct ParsedResponse {
  std::string reasoning, content;
  std::vector<ParsedCall> calls;
  void add(const std::vector<ResponseEvent>& events);
  bool operator==(const ParsedResponse&) const = default;
};

ParsedResponse parse_response(const FormatChoice& format, ResponseParserOptions options,
                              std::string_view text);

}  // namespace atom::text
