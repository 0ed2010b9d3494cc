// Fuzzes the response parsers: the first bytes choose format, options and cuts, the rest is what a model
// wrote. However the text is cut, the folded events are the same, and text without markup comes out as it is.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/json_scanner.h"
#include "text/response_parser.h"

namespace {

using namespace atom::text;

constexpr int kFormats = static_cast<int>(ResponseFormat::kimi_k2) + 1;

// Letters stand for pieces of markup, so that mutations reach deep into the syntaxes.
constexpr std::string_view kPieces[] = {"<tool_call>",
                                        "</tool_call>",
                                        "\n",
                                        "{\"name\": \"f\", \"arguments\": {\"a\": \"}<\"}}",
                                        "{",
                                        "}",
                                        "\"name\":",
                                        "\"f\"",
                                        "\"arguments\":",
                                        "\"parameters\":",
                                        "<function=f>",
                                        "<function=",
                                        ">",
                                        "<parameter=n>",
                                        "</parameter>",
                                        "</function>",
                                        "<｜tool▁calls▁begin｜>",
                                        "<｜tool▁call▁begin｜>",
                                        "function<｜tool▁sep｜>",
                                        "<｜tool▁sep｜>",
                                        "f\n```json\n{}\n```",
                                        "<｜tool▁call▁end｜>",
                                        "<｜tool▁calls▁end｜>",
                                        "<｜DSML｜function_calls>",
                                        "<｜DSML｜invoke name=\"f\">",
                                        "<｜DSML｜parameter name=\"s\" string=\"true\">",
                                        "</｜DSML｜parameter>",
                                        "</｜DSML｜invoke>",
                                        "</｜DSML｜function_calls>",
                                        "<arg_key>",
                                        "</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        "<|channel|>",
                                        "<|message|>",
                                        "<|start|>",
                                        "assistant",
                                        "<|end|>",
                                        "<|call|>",
                                        "<|return|>",
                                        "analysis",
                                        "commentary to=functions.f ",
                                        "<|constrain|>json",
                                        "final",
                                        "<|python_tag|>",
                                        ";",
                                        "[TOOL_CALLS]",
                                        "[ARGS]",
                                        "[",
                                        "]",
                                        ",",
                                        "<|tool_calls_section_begin|>",
                                        "<|tool_call_begin|>",
                                        "functions.f:0",
                                        "<|tool_call_argument_begin|>",
                                        "<|tool_call_end|>",
                                        "<|tool_calls_section_end|>",
                                        "<think>",
                                        "</think>",
                                        "[THINK]",
                                        "[/THINK]",
                                        "12",
                                        "True",
                                        "\\u00e9",
                                        " "};
constexpr size_t kPieceCount = sizeof(kPieces) / sizeof(kPieces[0]);

ParsedResponse parse(const FormatChoice& format, const ResponseParserOptions& options, std::string_view text,
                     uint32_t cuts) {
  ParsedResponse response;
  const auto parser = make_response_parser(format, options);
  while (!text.empty()) {
    cuts = cuts * 1664525 + 1013904223;
    const size_t size = cuts == 0 ? text.size() : 1 + (cuts >> 24) % 16;
    response.add(parser->push(text.substr(0, size)));
    text.remove_prefix(std::min(size, text.size()));
  }
  response.add(parser->finish());
  return response;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const FormatChoice format{static_cast<ResponseFormat>(data[0] % kFormats),
                            static_cast<ReasoningFormat>(data[1] % 3), ""};
  ResponseParserOptions options;
  options.starts_in_reasoning = (data[1] & 4) != 0;
  options.parse_tools = (data[1] & 8) == 0;
  if ((data[1] & 16) == 0) {
    options.tools = {
        {"f", atom::Json{{"properties", {{"s", {{"type", "string"}}}, {"n", {{"type", "number"}}}}}}}};
  }
  // Bytes from 128 on are pieces of markup, unless the input is taken as it is.
  std::string text;
  for (size_t i = 3; i < size; ++i) {
    if ((data[1] & 32) != 0 || data[i] < 128) {
      text += static_cast<char>(data[i]);
    } else {
      text += kPieces[(data[i] - 128u) % kPieceCount];
    }
  }
  const ParsedResponse whole = parse_response(format, options, text);
  ParsedResponse bytes;
  const auto parser = make_response_parser(format, options);
  for (const char& c : text) bytes.add(parser->push({&c, 1}));
  bytes.add(parser->finish());
  CHECK(whole == bytes, "byte by byte");
  CHECK(whole == parse(format, options, text, data[2] + 1u), "cut");

  for (const ParsedCall& call : whole.calls) {
    CHECK(!call.name.empty());
    JsonScanner scanner;
    for (const char c : call.arguments) {
      const JsonScanner::Status status = scanner.feed(c);
      CHECK(status == JsonScanner::Status::more || status == JsonScanner::Status::done, "{}", call.arguments);
    }
  }
  const bool plain = text.find_first_of("<[{;") == std::string::npos &&
                     !(format.tools == ResponseFormat::harmony && text.find("to=") != std::string::npos);
  if (plain && !options.starts_in_reasoning) {
    CHECK(whole.content == text || (format.tools == ResponseFormat::harmony && text.size() < 12), "{}", text);
    CHECK(whole.reasoning.empty() && whole.calls.empty());
  }
  return 0;
}
