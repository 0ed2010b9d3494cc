// Collects the events of one push.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/response_parser.h"

namespace atom::text {

// Neighbouring pieces of one kind become one event.
class EventSink {
 public:
  void reasoning(std::string_view text) { add(ResponseEvent::Kind::reasoning, text, -1); }
  void content(std::string_view text) { add(ResponseEvent::Kind::content, text, -1); }
  void start_call(std::string_view name, std::string_view id) {
    events_.push_back({ResponseEvent::Kind::tool_start, "", ++call_, std::string(name), std::string(id)});
  }
  // More of the arguments of the call that was started last.
  void arguments(std::string_view text) { add(ResponseEvent::Kind::tool_arguments, text, call_); }

  std::vector<ResponseEvent> take() { return std::exchange(events_, {}); }

 private:
  void add(ResponseEvent::Kind kind, std::string_view text, int index) {
    if (text.empty()) return;
    if (!events_.empty() && events_.back().kind == kind && events_.back().tool_index == index) {
      events_.back().text += text;
    } else {
      events_.push_back({kind, std::string(text), index});
    }
  }

  std::vector<ResponseEvent> events_;
  int call_ = -1;
};

}  // namespace atom::text
