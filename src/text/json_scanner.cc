// The JSON state machine.
#include "text/json_scanner.h"

namespace atom::text {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }

}  // namespace

JsonScanner::Status JsonScanner::fail() {
  state_ = State::bad;
  return Status::bad;
}

JsonScanner::Status JsonScanner::end_value() {
  state_ = depth_ == 0 ? State::end : State::next;
  return depth_ == 0 ? Status::done : Status::more;
}

JsonScanner::Status JsonScanner::begin_string(bool is_key) {
  is_key_ = is_key;
  state_ = State::string;
  return Status::more;
}

JsonScanner::Status JsonScanner::open(char c) {
  if (depth_ == kMaxJsonDepth) return fail();
  in_object_[depth_++] = c == '{';
  state_ = c == '{' ? State::first_key : State::first_item;
  return Status::more;
}

JsonScanner::Status JsonScanner::close(char c) {
  if (c != (in_object_[depth_ - 1] ? '}' : ']')) return fail();
  --depth_;
  return end_value();
}

JsonScanner::Status JsonScanner::begin_value(char c) {
  if (c == '{' || c == '[') return open(c);
  if (c == '"') return begin_string(false);
  if (c == '-' || is_digit(c)) {
    state_ = c == '-' ? State::minus : c == '0' ? State::zero : State::integer;
    return Status::more;
  }
  literal_ = c == 't' ? "rue" : c == 'f' ? "alse" : c == 'n' ? "ull" : "";
  if (literal_.empty()) return fail();
  state_ = State::literal;
  return Status::more;
}

bool JsonScanner::complete() const {
  switch (state_) {
    case State::end:
      return true;
    case State::zero:
    case State::integer:
    case State::fraction:
    case State::exponent_digits:
      return depth_ == 0;
    default:
      return false;
  }
}

JsonScanner::Status JsonScanner::number(char c) {
  const bool digit = is_digit(c);
  const bool e = c == 'e' || c == 'E';
  State next = State::bad;
  switch (state_) {
    case State::minus:
      if (digit) next = c == '0' ? State::zero : State::integer;
      break;
    case State::zero:
    case State::integer:
      if (digit && state_ == State::integer) next = State::integer;
      if (c == '.') next = State::point;
      if (e) next = State::exponent;
      break;
    case State::point:
    case State::fraction:
      if (digit) next = State::fraction;
      if (e && state_ == State::fraction) next = State::exponent;
      break;
    case State::exponent:
      if (c == '+' || c == '-') next = State::exponent_sign;
      [[fallthrough]];
    default:  // exponent_sign, exponent_digits
      if (digit) next = State::exponent_digits;
  }
  if (next != State::bad) {
    state_ = next;
    return Status::more;
  }
  const bool whole = state_ == State::zero || state_ == State::integer || state_ == State::fraction ||
                     state_ == State::exponent_digits;
  if (!whole || digit) return fail();  // a digit here follows a leading zero
  if (depth_ == 0) {
    state_ = State::end;
    return Status::past_end;
  }
  state_ = State::next;
  return feed(c);
}

JsonScanner::Status JsonScanner::feed(char c) {
  switch (state_) {
    case State::string:
      if (c == '\\') {
        state_ = State::escape;
      } else if (c == '"') {
        if (!is_key_) return end_value();
        state_ = State::colon;
      }
      return Status::more;
    case State::escape:
      if (c == 'u') {
        hex_left_ = 4;
        state_ = State::hex;
        return Status::more;
      }
      if (std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos) return fail();
      state_ = State::string;
      return Status::more;
    case State::hex:
      if (!is_hex(c)) return fail();
      if (--hex_left_ == 0) state_ = State::string;
      return Status::more;
    case State::literal:
      if (c != literal_.front()) return fail();
      literal_.remove_prefix(1);
      return literal_.empty() ? end_value() : Status::more;
    case State::end:
      return Status::past_end;
    case State::bad:
      return Status::bad;
    case State::value:
    case State::first_item:
    case State::first_key:
    case State::key:
    case State::colon:
    case State::next:
      break;
    default:
      return number(c);
  }
  if (is_ascii_space(c)) return Status::more;
  switch (state_) {
    case State::value:
      return begin_value(c);
    case State::first_item:
      return c == ']' ? close(c) : begin_value(c);
    case State::first_key:
      if (c == '}') return close(c);
      [[fallthrough]];
    case State::key:
      return c == '"' ? begin_string(true) : fail();
    case State::colon:
      if (c != ':') return fail();
      state_ = State::value;
      return Status::more;
    default:  // next
      if (c != ',') return close(c);
      state_ = in_object_[depth_ - 1] ? State::key : State::value;
      return Status::more;
  }
}

bool is_json(std::string_view text) {
  JsonScanner scanner;
  for (const char c : text) {
    if (scanner.in_string() && is_control(c)) return false;
    const JsonScanner::Status status = scanner.feed(c);
    if (status == JsonScanner::Status::bad) return false;
    if (status == JsonScanner::Status::past_end && !is_ascii_space(c)) return false;
  }
  return scanner.complete();
}

void append_json_escaped(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (is_control(c)) {
      out += "\\u00";
      out += kHex[static_cast<size_t>(c >> 4)];
      out += kHex[static_cast<size_t>(c & 15)];
    } else {
      out += c;
    }
  }
}

JsonScanner::Status ArgumentStream::feed(char c, std::string& out) {
  if (!begun_) {
    if (is_ascii_space(c)) return JsonScanner::Status::more;
    if (c != '{') return JsonScanner::Status::bad;
    begun_ = true;
  }
  const bool in_string = scanner_.in_string();
  const JsonScanner::Status status = scanner_.feed(c);
  if (status == JsonScanner::Status::more || status == JsonScanner::Status::done) {
    if (in_string && is_control(c)) {
      append_json_escaped({&c, 1}, out);
    } else {
      out += c;
    }
  }
  return status;
}

JsonScanner::Status ArgumentStream::feed_all(TextFeed& text, std::string& out) {
  auto status = JsonScanner::Status::more;
  size_t used = 0;
  for (const char c : text.rest()) {
    status = feed(c, out);
    if (status == JsonScanner::Status::bad) break;
    ++used;
    if (status == JsonScanner::Status::done) break;
  }
  text.consume(used);
  return status;
}

}  // namespace atom::text
