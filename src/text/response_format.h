// Which syntax a checkpoint uses for tool calls and reasoning, found from its chat template and vocabulary.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace atom::text {

// Syntax of tool calls, by an example.
enum class ResponseFormat : uint8_t {
  plain,        // no calls
  hermes,       // <tool_call>{"name": "f", "arguments": {}}</tool_call>
  qwen3_coder,  // <tool_call><function=f><parameter=k>v</parameter></function></tool_call>
  deepseek_v3,  // <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f ```json {}
                // ```<｜tool▁call▁end｜>...
  deepseek_v31,  // <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
  deepseek_v32,  // <｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="k"
                 // string="true">v...
  glm45,         // <tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>
  harmony,       // <|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>
  llama3_json,   // {"name": "f", "parameters": {}}
  mistral,       // [TOOL_CALLS][{"name": "f", "arguments": {}, "id": "123456789"}]
  mistral_args,  // [TOOL_CALLS]f[ARGS]{}
  kimi_k2,  // <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}...
};

enum class ReasoningFormat : uint8_t {
  none,
  think,          // <think>...</think>
  mistral_think,  // [THINK]...[/THINK]
  harmony,        // the analysis channel
};

struct FormatChoice {
  ResponseFormat tools = ResponseFormat::plain;
  ReasoningFormat reasoning = ReasoningFormat::none;
  std::string reason;  // what in the checkpoint spoke for this, for logs
};

std::string_view to_string(ResponseFormat format);
std::string_view to_string(ReasoningFormat format);

// Chooses. The template decides; only where it is empty do the vocabulary (`has_token`: whether a text is one
// token) and the architecture of config.json.
FormatChoice detect_response_format(std::string_view chat_template,
                                    const std::function<bool(std::string_view)>& has_token,
                                    std::string_view architecture);

// True if a rendered prompt ends inside a reasoning section that the template has opened.
bool prompt_opens_reasoning(const FormatChoice& format, std::string_view rendered_prompt);

// True if it ends behind one that the template has closed: there is none to come.
bool prompt_closes_reasoning(const FormatChoice& format, std::string_view rendered_prompt);

// Special tokens that must stay in the text for this format to be parsed.
std::vector<std::string> visible_special_tokens(const FormatChoice& format);

// Tokens that end the model's turn, beside those that the checkpoint names itself.
std::vector<std::string> turn_end_tokens(const FormatChoice& format);

}  // namespace atom::text
