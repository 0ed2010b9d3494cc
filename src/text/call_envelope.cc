// The state machine of a call in one JSON object.
#include "text/call_envelope.h"

#include <optional>
#include <utility>

#include "text/call_parser.h"

namespace atom::text {
namespace {

// The value of a JSON string; nothing if it is none.
std::optional<std::string> string_value(std::string_view raw) {
  const Json value = Json::parse(raw, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

}  // namespace

std::string CallEnvelope::take_arguments() {
  return started_ ? std::exchange(arguments_, {}) : std::string();
}

CallEnvelope::Status CallEnvelope::feed(char c) {
  switch (state_) {
    case State::key_text:
    case State::value_text: {
      const Status status = scanner_.feed(c);
      if (status == Status::bad) return Status::bad;
      if (status != Status::past_end && field_ != Field::other) raw_ += c;
      if (status == Status::more) return Status::more;
      const Status ended = state_ == State::key_text ? end_key() : end_value();
      return ended == Status::more && status == Status::past_end ? feed(c) : ended;
    }
    case State::arguments: {
      const Status status = stream_.feed(c, arguments_);
      if (status == Status::done) state_ = State::next;
      return status == Status::done ? Status::more : status;
    }
    default:
      break;
  }
  if (is_ascii_space(c)) return Status::more;
  switch (state_) {
    case State::open:
      state_ = State::key;
      return c == '{' ? Status::more : Status::bad;
    case State::key:
      scanner_ = JsonScanner();
      scanner_.feed(c);
      raw_ = c;
      field_ = Field::name;  // of a key all is kept
      state_ = State::key_text;
      return c == '"' ? Status::more : Status::bad;
    case State::colon:
      state_ = State::value;
      return c == ':' ? Status::more : Status::bad;
    case State::value:
      return begin_value(c);
    default:  // next
      if (c == ',') {
        state_ = State::key;
        return Status::more;
      }
      if (c != '}' || !has_name_) return Status::bad;
      if (!has_arguments_) arguments_ = "{}";
      started_ = true;
      return Status::done;
  }
}

CallEnvelope::Status CallEnvelope::end_key() {
  const std::optional<std::string> key = string_value(raw_);
  if (key == "name" || key == "function") {
    field_ = Field::name;
  } else if (key == "arguments" || key == "parameters") {
    field_ = Field::arguments;
  } else {
    field_ = key == "id" ? Field::id : Field::other;
    if (field_ == Field::other && key != "type" && !has_name_) return Status::bad;
  }
  const bool again = field_ == Field::name ? has_name_ : field_ == Field::arguments && has_arguments_;
  state_ = State::colon;
  return again ? Status::bad : Status::more;
}

CallEnvelope::Status CallEnvelope::begin_value(char c) {
  if (field_ == Field::arguments) {
    if (c == '{') {
      state_ = State::arguments;
      has_arguments_ = true;
      started_ = has_name_;
      return feed(c);
    }
    if (c != '"' && c != 'n') return Status::bad;
  }
  scanner_ = JsonScanner();
  raw_.clear();
  state_ = State::value_text;
  return feed(c);
}

CallEnvelope::Status CallEnvelope::end_value() {
  state_ = State::next;
  if (field_ == Field::other) return Status::more;
  const std::optional<std::string> text = string_value(raw_);
  switch (field_) {
    case Field::name:
      if (!text || text->empty() || text->size() > kMaxCallName) return Status::bad;
      name_ = *text;
      has_name_ = true;
      break;
    case Field::id:
      if (text && !started_) id_ = *text;
      break;
    default:  // arguments
      if (!text) {
        arguments_ = "{}";  // null
      } else if (unpack_arguments(*text) == Status::bad) {
        return Status::bad;
      }
      has_arguments_ = true;
  }
  started_ = started_ || (has_name_ && has_arguments_);
  return Status::more;
}

CallEnvelope::Status CallEnvelope::unpack_arguments(const std::string& text) {
  for (const char c : text) {
    const Status status = stream_.feed(c, arguments_);
    if (status == Status::bad || (status == Status::past_end && !is_ascii_space(c))) return Status::bad;
  }
  return stream_.complete() ? Status::done : Status::bad;
}

}  // namespace atom::text
