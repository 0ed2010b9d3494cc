// Splits reasoning between tags from the rest, and has the rest searched for tool calls.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/call_parser.h"
#include "text/event_sink.h"

namespace atom::text {

// Reasoning begins with the opening tag at the very start of the text (white space before it does not count),
// or before the text, and ends with the first closing tag; later tags are content. Newlines beside reasoning
// are dropped.
struct ThinkTags {
  std::string_view open, close;  // empty: no reasoning
  std::vector<std::string_view>
      also_ends;  // control tokens that end unclosed reasoning; they are not consumed
};

class ThinkParser : public ResponseParser {
 public:
  ThinkParser(ThinkTags tags, ResponseFormat format, const ResponseParserOptions& options);

  std::vector<ResponseEvent> push(std::string_view text) override;
  std::vector<ResponseEvent> finish() override;

 private:
  enum class State : uint8_t { start, opened, begun, reasoning, closed, rest };
  bool step();
  bool go(State next);

  ThinkTags tags_;
  std::vector<std::string_view> ends_;
  EventSink sink_;
  std::unique_ptr<CallParser> calls_;
  TextFeed feed_;
  State state_;
  std::string held_;  // white space at the start, or newlines in the reasoning
};

}  // namespace atom::text
