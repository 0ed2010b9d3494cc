// The beginnings of calls, and call ids.
#include "text/tool_choice.h"

namespace atom::text {
namespace {

struct CallPrefix {
  std::string_view before_name, behind_name;
};

CallPrefix prefix_of(ResponseFormat format) {
  switch (format) {
    case ResponseFormat::hermes:
      return {"<tool_call>\n{\"name\": \"", "\", \"arguments\":"};
    case ResponseFormat::qwen3_coder:
      return {"<tool_call>\n<function=", ">\n"};
    case ResponseFormat::deepseek_v3:
      return {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n"};
    case ResponseFormat::deepseek_v31:
      return {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁sep｜>"};
    case ResponseFormat::deepseek_v32:
      return {"<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"", "\">\n"};
    case ResponseFormat::glm45:
      return {"<tool_call>", "\n"};
    case ResponseFormat::harmony:
      return {"<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"};
    case ResponseFormat::llama3_json:
      return {"{\"name\": \"", "\", \"parameters\":"};
    case ResponseFormat::mistral:
      return {"[TOOL_CALLS][{\"name\": \"", "\", \"arguments\":"};
    case ResponseFormat::mistral_args:
      return {"[TOOL_CALLS]", "[ARGS]"};
    case ResponseFormat::kimi_k2:
      return {"<|tool_calls_section_begin|><|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>"};
    case ResponseFormat::plain:
      break;
  }
  return {};
}

std::string letters_and_digits(uint64_t random, int count) {
  constexpr std::string_view kAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string out;
  for (int i = 0; i < count; ++i) {
    // splitmix64
    uint64_t z = random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    out += kAlphabet[(z ^ (z >> 31)) % kAlphabet.size()];
  }
  return out;
}

}  // namespace

Result<std::string> call_prefix(const FormatChoice& format, std::string_view name) {
  const CallPrefix prefix = prefix_of(format.tools);
  if (prefix.before_name.empty()) {
    return invalid("tool_choice: this model's chat template has no tool calls ({}); use \"none\" or \"auto\"",
                   format.reason);
  }
  std::string text(prefix.before_name);
  if (!name.empty()) {
    text += name;
    text += prefix.behind_name;
  }
  return text;
}

std::vector<std::string> call_marks(ResponseFormat format) {
  switch (format) {
    case ResponseFormat::hermes:
    case ResponseFormat::glm45:
      return {"<tool_call>"};
    case ResponseFormat::qwen3_coder:
      return {"<tool_call>", "<function="};
    case ResponseFormat::deepseek_v3:
    case ResponseFormat::deepseek_v31:
      return {"<｜tool▁calls▁begin｜>"};
    case ResponseFormat::deepseek_v32:
      return {"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜invoke name=\""};
    case ResponseFormat::mistral:
    case ResponseFormat::mistral_args:
      return {"[TOOL_CALLS]"};
    case ResponseFormat::kimi_k2:
      return {"<|tool_calls_section_begin|>"};
    case ResponseFormat::harmony:
    case ResponseFormat::llama3_json:
    case ResponseFormat::plain:
      return {};
  }
  return {};
}

std::string tool_call_id(const FormatChoice& format, int index, std::string_view name, uint64_t random) {
  switch (format.tools) {
    case ResponseFormat::kimi_k2:
      return fmt::format("functions.{}:{}", name, index);
    case ResponseFormat::mistral:
    case ResponseFormat::mistral_args:
      return letters_and_digits(random, 9);
    default:
      return "call_" + letters_and_digits(random, 24);
  }
}

}  // namespace atom::text
