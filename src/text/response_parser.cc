// Makes the parser of a format, and folds its events.
#include "text/response_parser.h"

#include <utility>

#include "base/check.h"
#include "text/harmony_parser.h"
#include "text/think_parser.h"

namespace atom::text {
namespace {

ThinkTags think_tags(const FormatChoice& format) {
  if (format.reasoning == ReasoningFormat::mistral_think) return {"[THINK]", "[/THINK]", {"[TOOL_CALLS]"}};
  if (format.reasoning != ReasoningFormat::think) return {};
  ThinkTags tags{"<think>", "</think>", {}};
  switch (format.tools) {  // tokens that nothing but a call contains
    case ResponseFormat::deepseek_v3:
    case ResponseFormat::deepseek_v31:
      tags.also_ends = {"<｜tool▁calls▁begin｜>"};
      break;
    case ResponseFormat::deepseek_v32:
      tags.also_ends = {"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"};
      break;
    case ResponseFormat::kimi_k2:
      tags.also_ends = {"<|tool_calls_section_begin|>"};
      break;
    default:
      break;
  }
  return tags;
}

}  // namespace

std::unique_ptr<ResponseParser> make_response_parser(const FormatChoice& format,
                                                     ResponseParserOptions options) {
  if (format.tools == ResponseFormat::harmony) return std::make_unique<HarmonyParser>(options);
  return std::make_unique<ThinkParser>(think_tags(format), format.tools, options);
}

void ParsedResponse::add(const std::vector<ResponseEvent>& events) {
  for (const ResponseEvent& event : events) {
    switch (event.kind) {
      case ResponseEvent::Kind::reasoning:
        reasoning += event.text;
        break;
      case ResponseEvent::Kind::content:
        content += event.text;
        break;
      case ResponseEvent::Kind::tool_start:
        CHECK(event.tool_index == static_cast<int>(calls.size()));
        calls.push_back({event.tool_name, "", event.tool_id});
        break;
      case ResponseEvent::Kind::tool_arguments:
        CHECK(event.tool_index + 1 == static_cast<int>(calls.size()));
        calls.back().arguments += event.text;
        break;
    }
  }
}

ParsedResponse parse_response(const FormatChoice& format, ResponseParserOptions options,
                              std::string_view text) {
  ParsedResponse response;
  const std::unique_ptr<ResponseParser> parser = make_response_parser(format, std::move(options));
  response.add(parser->push(text));
  response.add(parser->finish());
  return response;
}

}  // namespace atom::text
