// A tool call as one JSON object: {"name": "f", "arguments": {...}}.
#pragma once
#include <string>
#include <string_view>

#include "text/json_scanner.h"

namespace atom::text {

// Reads the object byte by byte. The keys may come in any order; `parameters` is another word for arguments,
// `function` (with a string) for the name. Arguments may also be null, absent, or an object as JSON text in a
// string. Before the name is known, a key of any other meaning says that this is some other object, not a
// call.
class CallEnvelope {
 public:
  using Status = JsonScanner::Status;

  Status feed(char c);  // more, done (the closing brace) or bad

  // True once the name is known and the arguments have begun, or there are none; stays true.
  bool started() const { return started_; }
  const std::string& name() const { return name_; }
  const std::string& id() const { return id_; }  // as known when started() turned true; may be ""
  // The arguments that came since the last call.
  std::string take_arguments();

 private:
  enum class State : uint8_t { open, key, key_text, colon, value, value_text, arguments, next };
  enum class Field : uint8_t { name, id, arguments, other };

  Status end_key();
  Status begin_value(char c);
  Status end_value();
  Status unpack_arguments(const std::string& text);

  State state_ = State::open;
  Field field_ = Field::other;
  JsonScanner scanner_;    // of the key or value being read
  std::string raw_;        // its text
  ArgumentStream stream_;  // of arguments that are an object
  bool has_name_ = false, has_arguments_ = false, started_ = false;
  std::string name_, id_, arguments_;
};

}  // namespace atom::text
