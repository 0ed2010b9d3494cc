// Tool calls with one tag per argument: Qwen3-Coder, GLM-4.5 and later, DeepSeek V3.2. Values are untyped
// text; the tool's schema gives them types.
#include <algorithm>
#include <array>
#include <map>

#include "text/argument_types.h"
#include "text/call_parser.h"

namespace atom::text {
namespace {

using Seen = TextFeed::Seen;

// An empty marker is not part of the syntax.
struct Syntax {
  std::array<std::string_view, 3> openers;  // any of them raises the suspicion of a call
  std::string_view name_begin;              // may be an opener itself
  bool bare_needs_tool = false;             // name_begin as an opener is a call only if a tool has the name
  std::string_view name_end;                // empty: white space or a tag ends the name
  std::string_view key_begin, key_end;
  std::string_view value_begin;    // behind key_end
  std::string_view attribute_end;  // behind key_end: attributes up to here; string="true" or "false" is one
  std::array<std::string_view, 2> value_ends;
  std::string_view padding;  // dropped once at the start of a value; value_ends have it at the end
  std::array<std::string_view, 2> call_ends;
  std::array<std::string_view, 2> behind;  // may follow
};

constexpr Syntax kQwen = {
    .openers = {"<tool_call>", "<function="},
    .name_begin = "<function=",
    .bare_needs_tool = true,  // models forget <tool_call>, but plain text may speak of <function=f>
    .name_end = ">",
    .key_begin = "<parameter=",
    .key_end = ">",
    .value_ends = {"\n</parameter>", "</parameter>"},
    .padding = "\n",
    .call_ends = {"</function>", "</tool_call>"},
    .behind = {"</tool_call>"},
};
constexpr Syntax kGlm = {
    .openers = {"<tool_call>"},
    .key_begin = "<arg_key>",
    .key_end = "</arg_key>",
    .value_begin = "<arg_value>",
    .value_ends = {"</arg_value>"},
    .call_ends = {"</tool_call>"},
};
constexpr Syntax kDeepSeek = {
    .openers = {"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜invoke name=\""},
    .name_begin = "<｜DSML｜invoke name=\"",
    .name_end = "\">",
    .key_begin = "<｜DSML｜parameter name=\"",
    .key_end = "\"",
    .attribute_end = ">",
    .value_ends = {"</｜DSML｜parameter>"},
    .call_ends = {"</｜DSML｜invoke>"},
    .behind = {"</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"},
};

constexpr size_t kMaxKey = 1024, kMaxAttributes = 64;

template <size_t n>
std::span<const std::string_view> present(const std::array<std::string_view, n>& markers) {
  const auto end = std::find(markers.begin(), markers.end(), std::string_view());
  return {markers.data(), static_cast<size_t>(end - markers.begin())};
}

class MarkupCalls : public CallParser {
 public:
  MarkupCalls(const Syntax& syntax, const std::vector<ToolSchema>& tools, EventSink& sink)
      : CallParser(sink), syntax_(syntax) {
    for (const ToolSchema& tool : tools) tools_.emplace(tool.name, ArgumentTypes(tool.parameters));
  }

 private:
  // text → opened → name → body → (key → attributes → value_begin → value → body)* → behind → text
  enum class State : uint8_t {
    text,
    opened,
    name,
    body,
    key,
    attributes,
    value_begin,
    padding,
    value,
    behind
  };

  bool step() override {
    switch (state_) {
      case State::text:
        return find_opener();
      case State::opened:
        skip_space();
        if (feed_.empty() && !feed_.closed()) return false;
        return syntax_.name_begin.empty() ? go(State::name) : follow(syntax_.name_begin, State::name);
      case State::name:
        return read_name();
      case State::body:
        return read_body();
      case State::key: {
        const TextFeed::Found found = feed_.find({&syntax_.key_end, 1});
        key_ += feed_.take(found.begin);
        if (key_.size() > kMaxKey) return give_up();
        if (found.index < 0) return wait("");
        feed_.consume(syntax_.key_end.size());
        types_ = call_types_ == nullptr ? kAnyType : call_types_->of(key_);
        attributes_.clear();
        return go(syntax_.attribute_end.empty() ? State::value_begin : State::attributes);
      }
      case State::attributes: {
        const TextFeed::Found found = feed_.find({&syntax_.attribute_end, 1});
        attributes_ += feed_.take(found.begin);
        if (attributes_.size() > kMaxAttributes) return give_up();
        if (found.index < 0) return wait("\"");
        feed_.consume(syntax_.attribute_end.size());
        if (attributes_.find("string=\"true\"") != std::string::npos) types_ = kStringType;
        if (attributes_.find("string=\"false\"") != std::string::npos) types_ = kAnyType & ~kStringType;
        return go(State::value_begin);
      }
      case State::value_begin: {
        if (!syntax_.value_begin.empty()) {
          skip_space();
          const Seen seen = feed_.see(syntax_.value_begin);
          if (feed_.closed() && syntax_.value_begin.starts_with(feed_.rest())) return wait("\"");
          if (seen == Seen::maybe) return false;
          if (seen == Seen::no) return give_up();
          feed_.consume(syntax_.value_begin.size());
        }
        begin_value();
        return go(State::padding);
      }
      case State::padding:
        if (!syntax_.padding.empty()) {
          const Seen seen = feed_.see(syntax_.padding);
          if (seen == Seen::maybe) return false;
          if (seen == Seen::yes) feed_.consume(syntax_.padding.size());
        }
        return go(State::value);
      case State::value:
        return read_value();
      default:  // behind
        hold_space();
        for (const std::string_view marker : present(syntax_.behind)) {
          const Seen seen = accept(marker);
          if (seen == Seen::maybe) return false;
          if (seen == Seen::yes) break;
        }
        return go(State::text);
    }
  }

  bool go(State next) {
    state_ = next;
    return true;
  }

  bool give_up() {
    fail_attempt();
    return go(State::text);
  }

  bool follow(std::string_view marker, State next) {
    const Seen seen = feed_.see(marker);
    if (seen == Seen::maybe) return false;
    if (seen == Seen::no) return give_up();
    feed_.consume(marker.size());
    return go(next);
  }

  // Needs more text in an argument's key or behind it. If there is none, the key is the last that is known.
  bool wait(std::string_view quote) {
    if (feed_.closed()) {
      feed_.release();
      sink_.arguments(key_text() + std::string(quote));
    }
    return false;
  }

  // `, "key`
  std::string key_text() const {
    std::string text = arguments_ == 0 ? "\"" : ", \"";
    append_json_escaped(key_, text);
    return text;
  }

  bool find_opener() {
    const int found = content_until(present(syntax_.openers));
    if (found < 0) return false;
    const std::string_view opener = syntax_.openers[static_cast<size_t>(found)];
    begin_attempt(opener.size());
    bare_ = opener == syntax_.name_begin;
    name_.clear();
    return go(bare_ ? State::name : State::opened);
  }

  bool read_name() {
    bool ended = false;
    if (syntax_.name_end.empty()) {
      const std::string_view rest = feed_.rest();
      const auto end =
          std::find_if(rest.begin(), rest.end(), [](char c) { return c == '<' || is_ascii_space(c); });
      ended = end != rest.end();
      name_ += feed_.take(static_cast<size_t>(end - rest.begin()));
    } else {
      const TextFeed::Found found = feed_.find({&syntax_.name_end, 1});
      ended = found.index == 0;
      name_ += feed_.take(found.begin);
      if (ended) feed_.consume(syntax_.name_end.size());
    }
    if (name_.size() > kMaxCallName || (!ended && feed_.closed())) return give_up();
    if (!ended) return false;
    const auto tool = tools_.find(name_);
    call_types_ = tool == tools_.end() ? nullptr : &tool->second;
    const bool odd = name_.empty() || name_.find_first_of("<>{}\"\n") != std::string::npos;
    if (odd || (bare_ && syntax_.bare_needs_tool && call_types_ == nullptr)) return give_up();
    started_ = false;
    arguments_ = 0;
    return go(State::body);
  }

  // Between arguments: the next one, or the end. Here a call becomes certain.
  bool read_body() {
    if (started_) {
      hold_space();
    } else {
      skip_space();
    }
    const Seen key = feed_.see(syntax_.key_begin);
    Seen end = Seen::no;
    std::string_view end_marker;
    bool cut_off = syntax_.key_begin.starts_with(feed_.rest());
    for (const std::string_view marker : present(syntax_.call_ends)) {
      cut_off = cut_off || marker.starts_with(feed_.rest());
      if (const Seen seen = feed_.see(marker); seen != Seen::no) {
        end = seen;
        end_marker = marker;
      }
    }
    if (started_ && feed_.closed() && cut_off && end != Seen::yes) {  // the text ends here or within a marker
      feed_.consume(feed_.rest().size());
      return false;
    }
    if (key == Seen::maybe || end == Seen::maybe) return false;
    if (key == Seen::no && end == Seen::no) return started_ ? go(State::text) : give_up();
    if (!started_) {
      start_call(name_);
      sink_.arguments("{");
      started_ = true;
    }
    drop_space();
    if (end == Seen::yes) {
      feed_.consume(end_marker.size());
      sink_.arguments("}");
      return go(State::behind);
    }
    begin_attempt(syntax_.key_begin.size());
    key_.clear();
    return go(State::key);
  }

  void begin_value() {
    feed_.release();
    sink_.arguments(key_text() + (types_ == kStringType ? "\": \"" : "\": "));
    ++arguments_;
    value_.clear();
  }

  // Strings stream; other values are known when they are whole.
  bool read_value() {
    const TextFeed::Found found = feed_.find(present(syntax_.value_ends));
    const std::string_view text = feed_.take(found.begin);
    if (types_ == kStringType) {
      std::string escaped;
      append_json_escaped(text, escaped);
      sink_.arguments(escaped);
    } else {
      value_ += text;
    }
    if (found.index < 0) {
      if (feed_.closed() && types_ != kStringType) {
        sink_.arguments(typed_beginning(std::exchange(value_, {}), types_));
      }
      return false;
    }
    feed_.consume(syntax_.value_ends[static_cast<size_t>(found.index)].size());
    sink_.arguments(types_ == kStringType ? "\"" : typed_value(value_, types_));
    return go(State::body);
  }

  const Syntax& syntax_;
  std::map<std::string, ArgumentTypes, std::less<>> tools_;
  State state_ = State::text;
  bool bare_ = false;  // the opener was the beginning of a name
  bool started_ = false;
  int arguments_ = 0;
  const ArgumentTypes* call_types_ = nullptr;  // of the tool with the call's name
  TypeSet types_ = kAnyType;                   // of the argument being read
  std::string name_, key_, attributes_, value_;
};

}  // namespace

std::unique_ptr<CallParser> make_markup_calls(ResponseFormat format, const std::vector<ToolSchema>& tools,
                                              EventSink& sink) {
  const Syntax& syntax = format == ResponseFormat::qwen3_coder ? kQwen
                         : format == ResponseFormat::glm45     ? kGlm
                                                               : kDeepSeek;
  return std::make_unique<MarkupCalls>(syntax, tools, sink);
}

}  // namespace atom::text
