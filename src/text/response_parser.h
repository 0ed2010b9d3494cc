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

// A function that the request offers. `parameters` is its JSON schema.
struct ToolSchema {
  std::string name;
  Json parameters;
};

struct ResponseEvent {
  enum class Kind : uint8_t { reasoning, content, tool_start, tool_arguments } kind;
  std::string text;         // all but tool_start: the next piece
  int tool_index = -1;      // tool events: counts the calls of the answer from 0
  std::string tool_name{};  // tool_start
  std::string tool_id{};    // tool_start: the id that the model itself wrote, if its syntax has one; or ""
};

struct ResponseParserOptions {
  std::vector<ToolSchema> tools;     // none: markup of calls stays content
  bool parse_tools = true;           // false: likewise (tool_choice none)
  bool starts_in_reasoning = false;  // see prompt_opens_reasoning
};

// One per choice of a response; not thread-safe.
class ResponseParser {
 public:
  virtual ~ResponseParser() = default;
  virtual std::vector<ResponseEvent> push(std::string_view text) = 0;
  virtual std::vector<ResponseEvent> finish() = 0;  // end of the text: what was held back; once
};

std::unique_ptr<ResponseParser> make_response_parser(const FormatChoice& format,
                                                     ResponseParserOptions options);

}  // namespace atom::text
