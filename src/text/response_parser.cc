// The plain format: everything is content.
#include "text/response_parser.h"

namespace atom::text {
namespace {

class PlainParser : public ResponseParser {
 public:
  std::vector<ResponseEvent> push(std::string_view text) override {
    std::vector<ResponseEvent> events;
    if (!text.empty()) events.push_back({.kind = ResponseEvent::Kind::content, .text = std::string(text)});
    return events;
  }
  std::vector<ResponseEvent> finish() override { return {}; }
};

}  // namespace

FormatChoice detect_response_format(std::string_view, std::span<const std::string>, std::string_view) {
  return {"plain: the answer is all content"};
}

std::unique_ptr<ResponseParser> make_response_parser(const FormatChoice&, ResponseParserOptions) {
  return std::make_unique<PlainParser>();
}

bool prompt_opens_reasoning(const FormatChoice&, std::string_view) { return false; }

std::vector<std::string> visible_special_tokens(const FormatChoice&) { return {}; }

}  // namespace atom::text
