// Which syntax a checkpoint uses for tool calls and reasoning, found from its chat template and vocabulary.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace atom::text {

// The plain format: all of an answer is content.
struct FormatChoice {
  std::string reason;  // what in the checkpoint spoke for this, for logs
};

// `has_token`: whether a text is one token.
FormatChoice detect_response_format(std::string_view chat_template,
                                    const std::function<bool(std::string_view)>& has_token,
                                    std::string_view architecture);

// True if a rendered prompt ends inside a reasoning section that the template has opened.
bool prompt_opens_reasoning(const FormatChoice& format, std::string_view rendered_prompt);

// Special tokens that must stay in the text for this format to be parsed.
std::vector<std::string> visible_special_tokens(const FormatChoice& format);

// Tokens that end the model's turn, beside those that the checkpoint names itself.
std::vector<std::string> turn_end_tokens(const FormatChoice& format);

}  // namespace atom::text
