// Tool calls with the name before a JSON object, between tokens made for it: DeepSeek V3 and V3.1, Kimi K2.
#include <algorithm>

#include "text/call_parser.h"

namespace atom::text {
namespace {

using Seen = TextFeed::Seen;
using Status = JsonScanner::Status;

struct Syntax {
  std::string_view section_begin, section_end, call_begin, separator, call_end;
  bool name_may_follow;  // a kind of tool stands before the separator, the name on the rest of the line
                         // behind it
};

constexpr Syntax kDeepSeek = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                              "<｜tool▁sep｜>",         "<｜tool▁call▁end｜>",  true};
constexpr Syntax kKimi = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                          "<|tool_call_argument_begin|>", "<|tool_call_end|>",          false};
constexpr std::string_view kFence = "```", kJson = "json";

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_ascii_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_ascii_space(text.back())) text.remove_suffix(1);
  return text;
}

class HeaderCalls : public CallParser {
 public:
  HeaderCalls(const Syntax& syntax, EventSink& sink)
      : CallParser(sink), syntax_(syntax), openers_{syntax.section_begin, syntax.call_begin} {}

 private:
  // text → (section →) header → (line → fence →) opening → arguments → behind → call_end → section_rest →
  // text
  enum class State : uint8_t {
    text,
    section,
    header,
    line,
    fence,
    opening,
    arguments,
    behind,
    call_end,
    section_rest
  };

  bool step() override {
    switch (state_) {
      case State::text: {
        const int found = content_until(openers_);
        if (found < 0) return false;
        begin_attempt(openers_[static_cast<size_t>(found)].size());
        state_ = found == 0 ? State::section : State::header;
        header_.clear();
        return true;
      }
      case State::section:
        skip_space();
        return follow(syntax_.call_begin, State::header);
      case State::header: {
        const TextFeed::Found found = feed_.find({&syntax_.separator, 1});
        header_ += feed_.take(found.begin);
        if (header_.size() > kMaxCallName || (found.index < 0 && feed_.closed())) return give_up();
        if (found.index < 0) return false;
        feed_.consume(syntax_.separator.size());
        set_name(trim(header_));
        state_ = syntax_.name_may_follow ? State::line : State::opening;
        line_.clear();
        fenced_ = false;
        return true;
      }
      case State::line:
        return read_line();
      case State::fence:
        skip_space();
        if (feed_.see(kFence) == Seen::maybe) return false;
        fenced_ = feed_.see(kFence) == Seen::yes;
        if (fenced_) {
          const std::string_view rest = feed_.rest().substr(kFence.size());
          if (rest.size() < kJson.size() && kJson.starts_with(rest) && !feed_.closed()) return false;
          feed_.consume(kFence.size() + (rest.starts_with(kJson) ? kJson.size() : 0));
        }
        state_ = State::opening;
        return true;
      case State::opening:
        return read_opening();
      case State::arguments:
        if (pass_arguments() == Status::more) return false;
        state_ = State::behind;
        return true;
      case State::behind:
        if (fenced_) return skip_optional(kFence, State::call_end);
        [[fallthrough]];
      case State::call_end:
        return skip_optional(syntax_.call_end, State::section_rest);
      default:  // section_rest: the section ends, or another call follows
        return skip_optional(syntax_.section_end, State::text);
    }
  }

  // Past white space and `marker` on to `next`; without the marker this is text again.
  bool skip_optional(std::string_view marker, State next) {
    hold_space();
    const Seen seen = accept(marker);
    if (seen == Seen::maybe) return false;
    state_ = seen == Seen::yes ? next : State::text;
    return true;
  }

  bool give_up() {
    fail_attempt();
    state_ = State::text;
    return true;
  }

  // On to `next` behind `marker`; without the marker this is no call.
  bool follow(std::string_view marker, State next) {
    const Seen seen = accept(marker);
    if (seen == Seen::maybe) return false;
    if (seen == Seen::no) return give_up();
    state_ = next;
    return true;
  }

  // Of "functions.f:0" f is the name, and the whole the id; other headers are the name.
  void set_name(std::string_view header) {
    name_ = header;
    id_.clear();
    if (syntax_.name_may_follow) return;
    constexpr std::string_view kPrefix = "functions.";
    const size_t colon = header.rfind(':');
    const bool numbered = colon != std::string_view::npos && colon + 1 < header.size() &&
                          header.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
    if (!numbered) return;
    id_ = header;
    name_ = header.substr(0, colon);
    if (name_.starts_with(kPrefix)) name_.erase(0, kPrefix.size());
  }

  // Either the arguments follow the separator, or the rest of the line is the name.
  bool read_line() {
    if (line_.empty()) skip_space();
    const std::string_view rest = feed_.rest();
    if (rest.empty() && !feed_.closed()) return false;
    if (line_.empty() && (rest.starts_with('{') || feed_.see(syntax_.call_end) == Seen::yes)) {
      state_ = State::opening;
      return true;
    }
    if (line_.empty() && feed_.see(syntax_.call_end) == Seen::maybe) return false;
    const size_t end = rest.find('\n');
    line_ += feed_.take(std::min(end, rest.size()));
    if (line_.size() > kMaxCallName || (end == std::string_view::npos && feed_.closed())) return give_up();
    if (end == std::string_view::npos) return false;
    name_ = trim(line_);
    state_ = State::fence;
    return true;
  }

  // The call is certain once its object begins; a call that ends here has no arguments.
  bool read_opening() {
    skip_space();
    if (feed_.empty() && !feed_.closed()) return false;
    const bool brace = feed_.rest().starts_with('{');
    const Seen end = feed_.see(fenced_ ? kFence : syntax_.call_end);
    if (!brace && end == Seen::maybe) return false;
    if (name_.empty() || (!brace && end == Seen::no)) return give_up();
    start_call(name_, id_);
    begin_arguments();
    if (!brace) sink_.arguments("{}");
    state_ = brace ? State::arguments : State::behind;
    return true;
  }

  const Syntax& syntax_;
  const std::string_view openers_[2];
  State state_ = State::text;
  bool fenced_ = false;  // the object stands in a ```json block
  std::string header_, line_, name_, id_;
};

}  // namespace

std::unique_ptr<CallParser> make_header_calls(ResponseFormat format, EventSink& sink) {
  return std::make_unique<HeaderCalls>(format == ResponseFormat::kimi_k2 ? kKimi : kDeepSeek, sink);
}

}  // namespace atom::text
