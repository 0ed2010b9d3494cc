// Choosing the response format from what a checkpoint carries.
#include "text/response_format.h"

#include <fmt/core.h>

#include <algorithm>

namespace atom::text {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view reasoning_opener(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::think:
      return "<think>";
    case ReasoningFormat::mistral_think:
      return "[THINK]";
    case ReasoningFormat::harmony:
      return "<|channel|>analysis<|message|>";
    default:
      return {};
  }
}

std::string_view reasoning_closer(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::think:
      return "</think>";
    case ReasoningFormat::mistral_think:
      return "[/THINK]";
    default:
      return {};
  }
}

bool ends_with_tag(std::string_view text, std::string_view tag) {
  return !tag.empty() && text.substr(0, text.find_last_not_of(kSpace) + 1).ends_with(tag);
}

}  // namespace

std::string_view to_string(ResponseFormat format) {
  switch (format) {
    case ResponseFormat::plain:
      return "plain";
    case ResponseFormat::hermes:
      return "hermes";
    case ResponseFormat::qwen3_coder:
      return "qwen3_coder";
    case ResponseFormat::deepseek_v3:
      return "deepseek_v3";
    case ResponseFormat::deepseek_v31:
      return "deepseek_v31";
    case ResponseFormat::deepseek_v32:
      return "deepseek_v32";
    case ResponseFormat::glm45:
      return "glm45";
    case ResponseFormat::harmony:
      return "harmony";
    case ResponseFormat::llama3_json:
      return "llama3_json";
    case ResponseFormat::mistral:
      return "mistral";
    case ResponseFormat::mistral_args:
      return "mistral_args";
    case ResponseFormat::kimi_k2:
      return "kimi_k2";
  }
  return "?";
}

std::string_view to_string(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::none:
      return "none";
    case ReasoningFormat::think:
      return "think";
    case ReasoningFormat::mistral_think:
      return "mistral_think";
    case ReasoningFormat::harmony:
      return "harmony";
  }
  return "?";
}

FormatChoice detect_response_format(std::string_view chat_template,
                                    const std::function<bool(std::string_view)>& has_token,
                                    std::string_view architecture) {
  const bool by_template = !chat_template.empty();
  const std::string where = by_template ? "the chat template" : "the vocabulary";
  auto has = [&](std::string_view text) {
    return by_template ? chat_template.find(text) != std::string_view::npos : has_token(text);
  };
  FormatChoice choice;
  auto take = [&](ResponseFormat tools, std::string_view because) {
    choice.tools = tools;
    choice.reason = fmt::format("{} has {}", where, because);
  };
  // Most telling first: templates of later families also speak of tags of earlier ones.
  if (has("<|channel|>") && has("<|message|>")) {
    take(ResponseFormat::harmony, "<|channel|>");
    choice.reasoning = ReasoningFormat::harmony;
    return choice;
  }
  if (has("｜DSML｜") || (!by_template && architecture == "DeepseekV32ForCausalLM")) {
    take(ResponseFormat::deepseek_v32, "｜DSML｜");
    if (!has("｜DSML｜"))
      choice.reason = fmt::format("the architecture is {}, without a template", architecture);
  } else if (has("<｜tool▁calls▁begin｜>")) {
    const bool fenced = !by_template || has("```json");
    take(fenced ? ResponseFormat::deepseek_v3 : ResponseFormat::deepseek_v31,
         fenced ? "<｜tool▁calls▁begin｜> and ```json" : "<｜tool▁calls▁begin｜> without ```json");
    if (!by_template) choice.reason = "the vocabulary has <｜tool▁calls▁begin｜>";
  } else if (has("<|tool_calls_section_begin|>")) {
    take(ResponseFormat::kimi_k2, "<|tool_calls_section_begin|>");
  } else if (has("[TOOL_CALLS]")) {
    take(has("[ARGS]") ? ResponseFormat::mistral_args : ResponseFormat::mistral,
         has("[ARGS]") ? "[TOOL_CALLS] and [ARGS]" : "[TOOL_CALLS]");
  } else if (has("<arg_key>")) {
    take(ResponseFormat::glm45, "<arg_key>");
  } else if (has("<function=") && has("<parameter=")) {
    take(ResponseFormat::qwen3_coder, "<function=");
  } else if (has("<tool_call>")) {
    take(ResponseFormat::hermes, "<tool_call>");
  } else if (by_template ? has("<|start_header_id|>") && has("\"parameters\"") : has("<|python_tag|>")) {
    take(ResponseFormat::llama3_json, by_template ? "\"parameters\" in a call" : "<|python_tag|>");
  } else {
    choice.reason = where + " has no tool-call syntax that is known";
  }

  if (has("[THINK]")) {
    choice.reasoning = ReasoningFormat::mistral_think;
    choice.reason += "; [THINK]";
  } else if (has("</think>")) {
    choice.reasoning = ReasoningFormat::think;
    choice.reason += "; </think>";
  }
  return choice;
}

bool prompt_opens_reasoning(const FormatChoice& format, std::string_view rendered_prompt) {
  return ends_with_tag(rendered_prompt, reasoning_opener(format.reasoning));
}

bool prompt_closes_reasoning(const FormatChoice& format, std::string_view rendered_prompt) {
  return ends_with_tag(rendered_prompt, reasoning_closer(format.reasoning));
}

std::vector<std::string> visible_special_tokens(const FormatChoice& format) {
  std::vector<std::string> tokens;
  switch (format.tools) {
    case ResponseFormat::hermes:
    case ResponseFormat::qwen3_coder:
      tokens = {"<tool_call>", "</tool_call>"};
      break;
    case ResponseFormat::glm45:
      tokens = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
      break;
    case ResponseFormat::deepseek_v3:
    case ResponseFormat::deepseek_v31:
      tokens = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"};
      break;
    case ResponseFormat::deepseek_v32:
      tokens = {"｜DSML｜"};
      break;
    case ResponseFormat::harmony:
      tokens = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
                "<|end|>",   "<|return|>",  "<|call|>"};
      break;
    case ResponseFormat::llama3_json:
      tokens = {"<|python_tag|>"};
      break;
    case ResponseFormat::mistral:
    case ResponseFormat::mistral_args:
      tokens = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};
      break;
    case ResponseFormat::kimi_k2:
      tokens = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>", "<|tool_call_end|>"};
      break;
    case ResponseFormat::plain:
      break;
  }
  if (format.reasoning == ReasoningFormat::think) tokens.insert(tokens.end(), {"<think>", "</think>"});
  if (format.reasoning == ReasoningFormat::mistral_think)
    tokens.insert(tokens.end(), {"[THINK]", "[/THINK]"});
  return tokens;
}

std::vector<std::string> turn_end_tokens(const FormatChoice& format) {
  switch (format.tools) {
    case ResponseFormat::harmony:
      return {"<|return|>", "<|call|>"};
    case ResponseFormat::llama3_json:
      return {"<|eot_id|>", "<|eom_id|>"};
    case ResponseFormat::glm45:
      return {"<|user|>", "<|observation|>"};
    default:
      return {};
  }
}

}  // namespace atom::text
