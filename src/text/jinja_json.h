// JSON in and out: the inputs of a template, and Python's json.dumps.
#pragma once
#include <optional>
#include <string>

#include "base/json.h"
#include "text/jinja_value.h"

namespace atom::jinja {

// The value of `json`; its integers up to 64 bits stay exact. Throws for text that is not UTF-8.
Value from_json(Runtime& runtime, const Json& json);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // what one level adds; nothing means one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// Throws for what JSON cannot hold: undefined values, objects, generators.
std::string dump_json(Runtime& runtime, const Value& value, const JsonStyle& style);

// The text of a JSON value in the default style, as tojson would print it.
std::string json_text(const Json& json);

}  // namespace atom::jinja
