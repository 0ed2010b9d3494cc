// What the tool-call parsers share.
#include "text/call_parser.h"

#include <algorithm>

namespace atom::text {

void CallParser::push(std::string_view text) {
  feed_.append(text);
  while (step()) {
  }
}

void CallParser::finish() {
  feed_.close();
  while (step()) {
  }
  if (!after_call_) sink_.content(space_);
  space_.clear();
}

void CallParser::content(std::string_view text) {
  const auto behind = std::find_if_not(text.rbegin(), text.rend(), is_ascii_space).base();
  const auto solid = static_cast<size_t>(behind - text.begin());
  if (solid > 0) {
    sink_.content(space_);
    sink_.content(text.substr(0, solid));
    space_.clear();
    after_call_ = false;
  }
  space_ += text.substr(solid);
}

int CallParser::content_until(std::span<const std::string_view> markers) {
  const TextFeed::Found found = feed_.find(markers);
  content(feed_.take(found.begin));
  return found.index;
}

void CallParser::begin_attempt(size_t opener) {
  feed_.mark();
  feed_.consume(opener);
  opener_ = opener;
}

void CallParser::start_call(std::string_view name, std::string_view id) {
  feed_.release();
  space_.clear();
  after_call_ = true;
  sink_.start_call(name, id);
}

void CallParser::fail_attempt() {
  feed_.rewind();
  content(feed_.take(opener_));
}

TextFeed::Seen CallParser::accept(std::string_view marker) {
  TextFeed::Seen seen = feed_.see(marker);
  if (feed_.closed() && !feed_.empty() && marker.starts_with(feed_.rest())) seen = TextFeed::Seen::yes;
  if (seen == TextFeed::Seen::yes) {
    feed_.take(marker.size());
    space_.clear();
  }
  return seen;
}

JsonScanner::Status CallParser::pass_arguments() {
  std::string out;
  const JsonScanner::Status status = arguments_.feed_all(feed_, out);
  sink_.arguments(out);
  return status;
}

namespace {

class PlainText : public CallParser {
 public:
  explicit PlainText(EventSink& sink) : CallParser(sink) {}

 private:
  bool step() override {
    sink_.content(feed_.take(feed_.rest().size()));
    return false;
  }
};

}  // namespace

std::unique_ptr<CallParser> make_plain_text(EventSink& sink) { return std::make_unique<PlainText>(sink); }

}  // namespace atom::text
