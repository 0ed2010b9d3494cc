// Tool calls that are JSON objects with the name inside, and Mistral's newer form with the name before.
#include <algorithm>

#include "text/call_envelope.h"
#include "text/call_parser.h"

namespace atom::text {
namespace {

using Seen = TextFeed::Seen;

class EnvelopeCalls : public CallParser {
 protected:
  using CallParser::CallParser;
  using Status = CallEnvelope::Status;

  void begin_envelope() { envelope_ = CallEnvelope(); }

  // Reads on in the envelope of an attempt. `more` if the text is used up; on `bad` the byte at the front is
  // the first that does not fit. The call is started as soon as it is certain.
  Status read_envelope() {
    Status status = Status::more;
    size_t used = 0;
    const bool was_started = envelope_.started();
    for (const char c : feed_.rest()) {
      status = envelope_.feed(c);
      if (status == Status::bad) break;
      ++used;
      if (status == Status::done) break;
    }
    feed_.consume(used);
    if (!was_started && envelope_.started()) start_call(envelope_.name(), envelope_.id());
    sink_.arguments(envelope_.take_arguments());
    return status;
  }

  CallEnvelope envelope_;
};

constexpr std::string_view kToolCall = "<tool_call>", kToolCallEnd = "</tool_call>";

class HermesCalls : public EnvelopeCalls {
 public:
  explicit HermesCalls(EventSink& sink) : EnvelopeCalls(sink) {}

 private:
  enum class State : uint8_t { text, envelope, behind };

  bool step() override {
    switch (state_) {
      case State::text:
        if (content_until({&kToolCall, 1}) < 0) return false;
        begin_attempt(kToolCall.size());
        begin_envelope();
        state_ = State::envelope;
        return true;
      case State::envelope: {
        const Status status = read_envelope();
        if (status == Status::more && !feed_.closed()) return false;
        if (!envelope_.started()) fail_attempt();
        state_ = envelope_.started() ? State::behind : State::text;
        return true;
      }
      default:  // behind
        hold_space();
        if (feed_.empty()) return false;
        if (accept(kToolCallEnd) == Seen::maybe) return false;
        state_ = State::text;
        return true;
    }
  }

  State state_ = State::text;
};

// One or more objects, separated by `;`, at the start of the text or behind <|python_tag|>.
class LlamaCalls : public EnvelopeCalls {
 public:
  explicit LlamaCalls(EventSink& sink) : EnvelopeCalls(sink) {}

 private:
  static constexpr std::string_view kPythonTag = "<|python_tag|>", kSeparator = ";", kBrace = "{";
  enum class State : uint8_t { start, text, envelope };

  bool step() override {
    switch (state_) {
      case State::start:  // of the text, or behind a call
        hold_space();
        for (const std::string_view opener : {kPythonTag, kBrace, kSeparator}) {
          if (opener == kSeparator && calls_ == 0) continue;
          const Seen seen = feed_.see(opener);
          if (seen == Seen::maybe) return false;
          if (seen == Seen::yes) return attempt(opener == kBrace ? 0 : opener.size());
        }
        state_ = State::text;
        return true;
      case State::text:
        if (content_until({&kPythonTag, 1}) < 0) return false;
        return attempt(kPythonTag.size());
      default: {  // envelope
        const Status status = read_envelope();
        if (status == Status::more && !feed_.closed()) return false;
        if (!envelope_.started()) fail_attempt();
        if (envelope_.started()) ++calls_;
        state_ = envelope_.started() ? State::start : State::text;
        return true;
      }
    }
  }

  bool attempt(size_t opener) {
    begin_attempt(opener);
    begin_envelope();
    state_ = State::envelope;
    return true;
  }

  State state_ = State::start;
  int calls_ = 0;
};

// [TOOL_CALLS] and then a list of objects, one object, or name[ARGS]{...}, possibly with [CALL_ID] between.
class MistralCalls : public EnvelopeCalls {
 public:
  explicit MistralCalls(EventSink& sink) : EnvelopeCalls(sink) {}

 private:
  static constexpr std::string_view kToolCalls = "[TOOL_CALLS]", kArgs = "[ARGS]", kCallId = "[CALL_ID]";
  enum class State : uint8_t { text, opened, envelope, behind, name, arguments };

  bool step() override {
    switch (state_) {
      case State::text:
        if (content_until({&kToolCalls, 1}) < 0) return false;
        begin_attempt(kToolCalls.size());
        state_ = State::opened;
        return true;
      case State::opened:
        skip_space();
        if (feed_.empty() && !feed_.closed()) return false;
        in_list_ = feed_.rest().starts_with('[');
        if (in_list_) feed_.consume(1);
        begin_envelope();
        name_.clear();
        state_ = in_list_ || feed_.rest().starts_with('{') ? State::envelope : State::name;
        return true;
      case State::envelope: {
        const Status status = read_envelope();
        if (status == Status::more && !feed_.closed()) return false;
        if (!envelope_.started()) fail_attempt();
        state_ = !envelope_.started() || !in_list_ ? State::text : State::behind;
        return true;
      }
      case State::behind:
        hold_space();
        if (feed_.empty()) return false;
        state_ = State::text;
        if (feed_.rest().starts_with(',')) {
          begin_attempt(1);
          begin_envelope();
          state_ = State::envelope;
        } else {
          accept("]");
        }
        return true;
      case State::name:
        return read_name();
      default:
        return read_arguments();
    }
  }

  // Up to the arguments' brace. Text in brackets behind the name is [ARGS] or [CALL_ID] with the id.
  bool read_name() {
    const std::string_view rest = feed_.rest();
    const size_t brace = rest.find('{');
    if (brace == std::string_view::npos && !feed_.closed()) {
      name_ += feed_.take(rest.size());
      if (name_.size() <= 2 * kMaxCallName) return false;
    }
    name_ += feed_.take(std::min(brace, rest.size()));
    std::string_view name = name_, id;
    while (!name.empty() && is_ascii_space(name.back())) name.remove_suffix(1);
    if (name.ends_with(kArgs)) name.remove_suffix(kArgs.size());
    if (const size_t at = name.find(kCallId); at != std::string_view::npos) {
      id = name.substr(at + kCallId.size());
      name = name.substr(0, at);
    }
    const bool fits = brace != std::string_view::npos && !name.empty() && name.size() <= kMaxCallName &&
                      name_.size() <= 2 * kMaxCallName &&
                      name.find_first_of(" \t\r\n[]\"") == std::string_view::npos;
    state_ = fits ? State::arguments : State::text;
    if (fits) {
      begin_arguments();
      start_call(name, id);
    } else {
      fail_attempt();
    }
    return true;
  }

  bool read_arguments() {
    if (pass_arguments() == Status::more) return false;
    state_ = State::text;
    return true;
  }

  State state_ = State::text;
  bool in_list_ = false;
  std::string name_;
};

}  // namespace

std::unique_ptr<CallParser> make_envelope_calls(ResponseFormat format, EventSink& sink) {
  if (format == ResponseFormat::llama3_json) return std::make_unique<LlamaCalls>(sink);
  if (format == ResponseFormat::hermes) return std::make_unique<HermesCalls>(sink);
  return std::make_unique<MistralCalls>(sink);
}

}  // namespace atom::text
