// Splitting a model's answer into reasoning, content and tool calls.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace atom::text {

struct ToolSchema {
  std::string name;
  Json parameters;
};

struct ResponseEvent {
  enum class Kind : uint8_t { reasoning, content, tool_start, tool_arguments } kind = Kind::content;
  std::string text;
  int tool_index = -1;
  std::string tool_name;
};

struct ResponseParserOptions {
  std::vector<ToolSchema> tools;
  bool parse_tools = true;
  bool starts_in_reasoning = false;
};

// One answer. Not thread-safe.
class ResponseParser {
 public:
  virtual ~ResponseParser() = default;
  virtual std::vector<ResponseEvent> push(std::string_view text) = 0;
  virtual std::vector<ResponseEvent> finish() = 0;
};

struct FormatChoice {
  std::string reason;
};

// How the model writes, found from its checkpoint. The plain format: all text is content.
FormatChoice detect_response_format(std::string_view chat_template, std::span<const std::string> added_tokens,
                                    std::string_view architecture);
std::unique_ptr<ResponseParser> make_response_parser(const FormatChoice& format,
                                                     ResponseParserOptions options);
// True if the prompt ends inside an opened reasoning block.
bool prompt_opens_reasoning(const FormatChoice& format, std::string_view rendered_prompt);
// Special tokens that the parser must see as text.
std::vector<std::string> visible_special_tokens(const FormatChoice& format);

}  // namespace atom::text
