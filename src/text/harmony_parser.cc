// The messages of gpt-oss.
#include "text/harmony_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/call_parser.h"

namespace atom::text {
namespace {

using Seen = TextFeed::Seen;
using Status = JsonScanner::Status;

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>",
                           kConstrain = "<|constrain|>", kEnd = "<|end|>", kReturn = "<|return|>",
                           kCall = "<|call|>";
constexpr size_t kMaxHeader = 1024;

constexpr std::array kHeaderEnds = {kMessage, kStart, kEnd, kReturn, kCall};
constexpr std::array kBodyEnds = {kEnd, kReturn, kCall, kStart, kChannel};
constexpr std::array kBetweenEnds = {kStart, kChannel, kMessage, kEnd, kReturn, kCall};

// The word of a header behind `key`.
std::string_view word_behind(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + key.size());
  return header.substr(0, header.find_first_of(" <\t\r\n"));
}

bool is_blank(std::string_view text) { return std::all_of(text.begin(), text.end(), is_ascii_space); }

}  // namespace

HarmonyParser::HarmonyParser(const ResponseParserOptions& options)
    : calls_allowed_(options.parse_tools && !options.tools.empty()) {
  if (options.starts_in_reasoning) begin_body(Kind::reasoning);
}

std::vector<ResponseEvent> HarmonyParser::push(std::string_view text) {
  feed_.append(text);
  while (step()) {
  }
  return sink_.take();
}

std::vector<ResponseEvent> HarmonyParser::finish() {
  feed_.close();
  while (step()) {
  }
  return sink_.take();
}

bool HarmonyParser::go(State next) {
  state_ = next;
  return true;
}

bool HarmonyParser::step() {
  switch (state_) {
    case State::first_header:
      return read_first_header();
    case State::header:
      return read_header();
    case State::body:
      return read_body();
    case State::call:
      return read_call();
    case State::arguments:
      return read_arguments();
    case State::behind_arguments:
      feed_.consume(feed_.space());
      return feed_.empty() ? false : begin_body(Kind::content);
    default:
      return read_between();
  }
}

// Text that is no header is an answer without one.
bool HarmonyParser::read_first_header() {
  header_ += feed_.take(feed_.space());
  if (feed_.empty()) {
    if (feed_.closed()) spill_header();
    return false;
  }
  bool open = false;
  for (const std::string_view word :
       {kStart, kChannel, kMessage, kConstrain, std::string_view("to="), std::string_view("assistant")}) {
    const Seen seen = feed_.see(word);
    if (seen == Seen::yes) return go(State::header);
    open = open || seen == Seen::maybe;
  }
  if (open) return false;
  return begin_body(Kind::content, std::exchange(header_, {}));
}

bool HarmonyParser::read_header() {
  const TextFeed::Found found = feed_.find(kHeaderEnds);
  header_ += feed_.take(std::min(found.begin, kMaxHeader + 1 - header_.size()));
  if (header_.size() > kMaxHeader) return begin_body(Kind::content, std::exchange(header_, {}));
  if (found.index < 0) {
    if (feed_.closed()) spill_header();
    return false;
  }
  const std::string_view marker = kHeaderEnds[static_cast<size_t>(found.index)];
  feed_.consume(marker.size());
  if (marker == kMessage) return begin_message();
  spill_header();
  return go(marker == kStart ? State::header : State::between);
}

// A header that no message follows is content, unless it only names the role.
void HarmonyParser::spill_header() {
  const std::string header = std::exchange(header_, {});
  if (is_blank(header) || header == "assistant") return;
  begin_body(Kind::content);
  emit(header);
}

bool HarmonyParser::begin_message() {
  const std::string header = std::exchange(header_, {});
  const std::string_view channel = word_behind(header, kChannel), recipient = word_behind(header, "to=");
  const bool to_someone = recipient == "assistant" || recipient == "user" || recipient == "all";
  if (!recipient.empty() && !to_someone) {
    constexpr std::string_view kFunctions = "functions.";
    name_ = recipient.substr(recipient.starts_with(kFunctions) ? kFunctions.size() : 0);
    header_ = header;
    if (calls_allowed_ && !name_.empty() && name_.size() <= kMaxCallName) return go(State::call);
    return begin_body(Kind::content, std::exchange(header_, {}) + std::string(kMessage));
  }
  return begin_body(channel == "analysis" ? Kind::reasoning : Kind::content);
}

bool HarmonyParser::begin_body(Kind kind, std::string_view opening) {
  kind_ = kind;
  separate_ = kind == Kind::reasoning ? has_reasoning_ : has_content_;
  emit(opening);
  return go(State::body);
}

void HarmonyParser::emit(std::string_view text) {
  if (text.empty()) return;
  const std::string_view separator = std::exchange(separate_, false) ? "\n" : "";
  if (kind_ == Kind::reasoning) {
    has_reasoning_ = true;
    sink_.reasoning(separator);
    sink_.reasoning(text);
  } else {
    has_content_ = true;
    sink_.content(separator);
    sink_.content(text);
  }
}

bool HarmonyParser::read_body() {
  const TextFeed::Found found = feed_.find(kBodyEnds);
  emit(feed_.take(found.begin));
  return found.index < 0 ? false : go(State::between);
}

// The call is certain once its object begins; an empty message is a call without arguments.
bool HarmonyParser::read_call() {
  feed_.consume(feed_.space());
  if (feed_.empty() && !feed_.closed()) return false;
  const bool brace = feed_.rest().starts_with('{');
  bool ended = feed_.empty();
  for (const std::string_view marker : kBodyEnds) {
    const Seen seen = feed_.see(marker);
    if (seen == Seen::maybe) return false;
    ended = ended || seen == Seen::yes;
  }
  if (!brace && !ended) return begin_body(Kind::content, std::exchange(header_, {}) + std::string(kMessage));
  header_.clear();
  sink_.start_call(name_, {});
  arguments_ = ArgumentStream();
  if (brace) return go(State::arguments);
  sink_.arguments("{}");
  return go(State::behind_arguments);
}

bool HarmonyParser::read_arguments() {
  std::string out;
  const Status status = arguments_.feed_all(feed_, out);
  sink_.arguments(out);
  return status == Status::more ? false : go(State::behind_arguments);
}

// Behind a message another one follows; stray markers are dropped, stray text is content.
bool HarmonyParser::read_between() {
  const TextFeed::Found found = feed_.find(kBetweenEnds);
  const std::string_view text = feed_.take(found.begin);
  if (!is_blank(text)) return begin_body(Kind::content, std::exchange(space_, {}) + std::string(text));
  space_ += text;
  if (found.index < 0) return false;
  space_.clear();
  const std::string_view marker = kBetweenEnds[static_cast<size_t>(found.index)];
  if (marker != kChannel) feed_.consume(marker.size());
  if (marker == kStart || marker == kChannel) return go(State::header);
  return marker == kMessage ? begin_body(Kind::content) : true;
}

}  // namespace atom::text
