// Helpers of the response parsers' tests: one text, cut in every way.
#pragma once
#include <gtest/gtest.h>

#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/response_parser.h"

namespace atom::text {

inline std::ostream& operator<<(std::ostream& out, const ParsedResponse& r) {
  out << "reasoning " << Json(r.reasoning) << " content " << Json(r.content);
  for (const ParsedCall& call : r.calls)
    out << "\n  " << call.name << " [" << call.id << "] " << call.arguments;
  return out;
}

inline FormatChoice format_of(ResponseFormat tools, ReasoningFormat reasoning = ReasoningFormat::none) {
  return {tools, reasoning, ""};
}

// f(s: string, n: number, i: integer, b: boolean, list: array, any: no type, maybe: string or null), g(), and
// get_weather(city, unit).
inline std::vector<ToolSchema> test_tools() {
  const Json f =
      Json::parse(R"({"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "number"},
    "i": {"type": "integer"}, "b": {"type": "boolean"}, "list": {"type": "array"}, "any": {},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "o": {"$ref": "#/$defs/o"}},
    "$defs": {"o": {"type": "object"}}})");
  const Json weather = Json::parse(R"({"type": "object", "properties": {"city": {"type": "string"},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}})");
  return {{"f", f}, {"g", Json::object()}, {"get_weather", weather}};
}

inline ParsedResponse parse_pieces(const FormatChoice& format, const ResponseParserOptions& options,
                                   const std::vector<std::string_view>& pieces) {
  ParsedResponse response;
  const auto parser = make_response_parser(format, options);
  for (const std::string_view piece : pieces) response.add(parser->push(piece));
  response.add(parser->finish());
  return response;
}

// Parses the text at once, byte by byte, in pairs, cut in two everywhere, and at random; all must agree.
inline ParsedResponse parse_every_way(const FormatChoice& format, const ResponseParserOptions& options,
                                      std::string_view text) {
  const ParsedResponse whole = parse_response(format, options, text);
  for (const size_t size : {1, 2, 3}) {
    std::vector<std::string_view> pieces;
    for (size_t at = 0; at < text.size(); at += size) pieces.push_back(text.substr(at, size));
    EXPECT_EQ(parse_pieces(format, options, pieces), whole) << "pieces of " << size << ": " << text;
  }
  for (size_t at = 0; at <= text.size(); ++at) {
    EXPECT_EQ(parse_pieces(format, options, {text.substr(0, at), text.substr(at)}), whole)
        << "cut at " << at << ": " << text;
  }
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string_view> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 12;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    EXPECT_EQ(parse_pieces(format, options, pieces), whole) << "random cuts: " << text;
  }
  return whole;
}

inline ParsedResponse parse_with_tools(ResponseFormat format, std::string_view text,
                                       ReasoningFormat reasoning = ReasoningFormat::none,
                                       bool starts_in_reasoning = false) {
  return parse_every_way(format_of(format, reasoning), {test_tools(), true, starts_in_reasoning}, text);
}

}  // namespace atom::text
