#include "text/response_parser.h"

namespace atom::text {
namespace {

class PlainParser : public ResponseParser {
 public:
  std::vector<ResponseEvent> push(std::string_view text) override {
    std::vector<ResponseEvent> events;
    if (!text.empty()) {
      events.push_back({.kind = ResponseEvent::Kind::content, .text = std::string(text)});
    }
    return events;
  }
  std::vector<ResponseEvent> finish() override { return {}; }
};

}  // namespace

std::unique_ptr<ResponseParser> make_response_parser(const FormatChoice&, ResponseParserOptions) {
  return std::make_unique<PlainParser>();
}

}  // namespace atom::text
