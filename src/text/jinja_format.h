// Python's two ways of formatting: `text % values` and text.format(...).
#pragma once
#include "text/jinja_runtime.h"
#include "text/jinja_value.h"

namespace atom::jinja {

// `format % values`: a tuple gives one value a directive, a dict is for %(name)s, anything else is the only
// value.
Value percent_format(Runtime& runtime, const Value& format, const Value& values);

// format.format(*args, **named).
Value brace_format(Runtime& runtime, const Value& format, const Args& args);

// The parts of a format specification that both share.
struct FormatSpec {
  char32_t fill = ' ';
  char align = 0;  // < > ^ =, or 0 for the type's own
  char sign = '-';
  bool alternate = false;
  char group = 0;  // , or _
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};
// Digits of a number as d, x, X, o, b, f, e, g (or capitals), %, n says, padded; throws for an unknown type.
std::string format_int(const FormatSpec& spec, Int value);
std::string format_real(const FormatSpec& spec, double value);
std::string pad(const FormatSpec& spec, std::string text, char default_align);

}  // namespace atom::jinja
