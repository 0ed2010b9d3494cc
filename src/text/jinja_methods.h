// Work on strings that methods and filters share.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_objects.h"
#include "text/jinja_runtime.h"
#include "text/jinja_value.h"

namespace atom::jinja {

// str.center of a text of `length` code points; `fill` is one code point.
std::string center_text(std::string_view text, int64_t length, int64_t width, std::string_view fill);

// str.strip(chars) on one side or both; white space where `chars` is null or none.
Value strip_text(Runtime& runtime, const Value& text, const Value* chars, bool left, bool right);

// str.splitlines.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// The methods of strings.
const NamedNative* find_string_method(std::string_view name);

}  // namespace atom::jinja
