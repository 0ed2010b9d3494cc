// JSON checked byte by byte, without keeping it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/text_feed.h"

namespace atom::text {

// Follows one JSON value (RFC 8259) and says where it ends. White space before the value is part of it. Raw
// control characters in strings are let through, for models write them; see ArgumentStream. UTF-8 is not
// checked.
class JsonScanner {
 public:
  enum class Status : uint8_t {
    more,      // the byte belongs to the value, which goes on
    done,      // the byte ends the value
    past_end,  // the value, a number, has ended before this byte
    bad,       // no JSON value goes on with this byte, or it is nested deeper than kMaxJsonDepth
  };

  Status feed(char c);
  // True if the bytes so far are a whole value.
  bool complete() const;
  bool in_string() const { return state_ == State::string; }
  int depth() const { return depth_; }

 private:
  enum class State : uint8_t {
    value,
    first_item,
    first_key,
    key,
    colon,
    next,
    string,
    escape,
    hex,
    literal,
    minus,
    zero,
    integer,
    point,
    fraction,
    exponent,
    exponent_sign,
    exponent_digits,
    end,
    bad
  };
  Status begin_value(char c);
  Status begin_string(bool is_key);
  Status end_value();
  Status open(char c);
  Status close(char c);
  Status number(char c);
  Status fail();

  State state_ = State::value;
  bool is_key_ = false;  // the string being read is a key
  int8_t hex_left_ = 0;
  std::string_view literal_;  // what must still follow of true, false or null
  int depth_ = 0;
  bool in_object_[kMaxJsonDepth];  // per level: object, else array
};

// True if `text` is one JSON value with white space around it at most, and strict about control characters.
bool is_json(std::string_view text);

// Appends `text` as the inside of a JSON string.
void append_json_escaped(std::string_view text, std::string& out);

// A JSON object copied as it comes; raw control characters in its strings are escaped, so that the copy is
// JSON.
class ArgumentStream {
 public:
  // Appends to `out` what is certain. `bad`: the byte is not part of the object and nothing was appended.
  JsonScanner::Status feed(char c, std::string& out);
  // Feeds from the front of `text` up to the end of the object, and consumes what belongs to it. `more` if
  // the text is used up; on `bad` the byte at the front is the first that does not fit.
  JsonScanner::Status feed_all(TextFeed& text, std::string& out);
  bool complete() const { return scanner_.complete(); }

 private:
  JsonScanner scanner_;
  bool begun_ = false;
};

}  // namespace atom::text
