// The directives of `%` and the fields of str.format.
#include "text/jinja_format.h"

#include <charconv>
#include <cmath>

#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

constexpr int64_t kMaxWidth = 1 << 20;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

int64_t read_number(std::string_view text, size_t& at) {
  int64_t number = 0;
  while (at < text.size() && is_digit(text[at])) {
    number = number * 10 + (text[at++] - '0');
    if (number > kMaxWidth) fail("a width or precision of more than {} is not supported", kMaxWidth);
  }
  return number;
}

std::string first_code_points(const std::string& text, int64_t count) {
  return count < 0 ? text : text.substr(0, byte_offset(text, count));
}

// repr with everything outside ASCII escaped.
std::string ascii_repr(Runtime& runtime, const Value& value) {
  std::string out;
  const std::string text = to_repr(runtime, value);
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else {
      out += c < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
             : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                           : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out;
}

// Hands out the values of `%` one by one, or by key.
class PercentValues {
 public:
  PercentValues(Runtime& runtime, const Value& values) : runtime_(runtime), values_(values) {
    is_tuple_ = values.is_list() && values.as_list().type != List::Type::list;
  }
  const Value& next() {
    if (is_tuple_) {
      const auto& items = values_.as_list().items;
      if (used_ >= items.size()) fail("not enough arguments for format string");
      return items[used_++];
    }
    if (used_++ > 0) fail("not enough arguments for format string");
    return values_;
  }
  const Value& by_key(const std::string& key) {
    if (!values_.is_dict()) fail("format requires a mapping");
    const Value* value = values_.as_dict().find(key);
    if (value == nullptr) fail("the format's key '{}' is missing", key);
    by_key_ = true;
    return *value;
  }
  void finish() const {
    if (by_key_ || values_.is_dict()) return;
    const bool mapping_like = values_.is_list() && !is_tuple_;  // Python lets any unused mapping or list pass
    if (is_tuple_ ? used_ < values_.as_list().items.size() : used_ == 0 && !mapping_like)
      fail("not all arguments converted during string formatting");
  }

 private:
  Runtime& runtime_;
  const Value& values_;
  bool is_tuple_;
  bool by_key_ = false;
  size_t used_ = 0;
};

Int integer_for(const Value& value, char type) {
  require_defined(value);
  if (value.is_integral()) return value.as_integer();
  if (value.kind() == Kind::real && (type == 'd' || type == 'i' || type == 'u'))
    return real_to_int(value.as_real());
  fail("%{} format: a number is required, not {}", type, type_name(value));
}

std::string percent_number(FormatSpec spec, const Value& value, char type) {
  spec.type = type;
  if (std::string_view("eEfFgG").find(type) != std::string_view::npos) {
    require_defined(value);
    if (!value.is_number()) fail("must be real number, not {}", type_name(value));
    return format_real(spec, value.as_real());
  }
  const Int number = integer_for(value, type);
  if (type == 'i' || type == 'u') spec.type = 'd';
  if (spec.precision < 0) return format_int(spec, number);
  // A precision of an integer is its least number of digits.
  FormatSpec digits = spec;
  digits.align = '=';
  digits.fill = '0';
  digits.precision = -1;
  digits.width = 0;
  const bool prefixed = spec.alternate && spec.type != 'd';
  const auto lead = static_cast<int64_t>((number < 0 || spec.sign != '-') + (prefixed ? 2 : 0));
  digits.width = spec.precision + lead;
  return pad(spec, format_int(digits, number), '>');
}

std::string percent_directive(Runtime& runtime, std::string_view format, size_t& at, PercentValues& values,
                              bool markup) {
  const Value* keyed = nullptr;
  if (at < format.size() && format[at] == '(') {
    int depth = 1;
    const size_t start = ++at;
    for (; at < format.size() && depth > 0; ++at) depth += format[at] == '(' ? 1 : format[at] == ')' ? -1 : 0;
    if (depth > 0) fail("incomplete format key");
    keyed = &values.by_key(std::string(format.substr(start, at - 1 - start)));
  }
  FormatSpec spec;
  bool zero = false, left = false;
  for (; at < format.size() && std::string_view("#0- +").find(format[at]) != std::string_view::npos; ++at) {
    if (format[at] == '#') spec.alternate = true;
    if (format[at] == '0') zero = true;
    if (format[at] == '-') left = true;
    if (format[at] == '+') spec.sign = '+';
    if (format[at] == ' ' && spec.sign != '+') spec.sign = ' ';
  }
  const auto size = [&] {
    if (at >= format.size() || format[at] != '*') return read_number(format, at);
    ++at;
    const Value& value = values.next();
    if (!value.is_integral()) fail("* wants int");
    const int64_t number = int_argument(&value, 0, "*");
    if (number > kMaxWidth) fail("a width or precision of more than {} is not supported", kMaxWidth);
    return number;
  };
  spec.width = size();
  if (spec.width < 0) {
    left = true;
    spec.width = -spec.width;
  }
  if (at < format.size() && format[at] == '.') {
    ++at;
    spec.precision = std::max<int64_t>(size(), 0);
  }
  while (at < format.size() && std::string_view("hlL").find(format[at]) != std::string_view::npos) ++at;
  if (at >= format.size()) fail("incomplete format");
  const char type = format[at++];
  spec.align = left ? '<' : '>';
  if (type == '%') return "%";
  const Value& value = keyed != nullptr ? *keyed : values.next();
  switch (type) {
    case 's':
    case 'r':
    case 'a': {
      std::string text = type == 's' && markup ? escaped(runtime, value)
                         : type == 's'         ? to_str(runtime, value)
                         : type == 'r'         ? to_repr(runtime, value)
                                               : ascii_repr(runtime, value);
      return pad(spec, first_code_points(text, spec.precision), '>');
    }
    case 'c':
      if (value.is_string()) {
        if (value.as_str().length != 1) fail("%c requires int or char");
        return pad(spec, value.text(), '>');
      }
      spec.type = 'c';
      spec.precision = -1;
      return format_int(spec, integer_for(value, 'c'));
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (zero && !left) {
        spec.fill = '0';
        spec.align = '=';
      }
      return percent_number(spec, value, type);
    default:
      fail("unsupported format character '{}' in a % format", type);
  }
}

// A leading zero of the width pads with zeros: numbers behind their sign, text at the end.
FormatSpec parse_spec(std::string_view text, bool number) {
  FormatSpec spec;
  bool fill_given = false;
  size_t at = 0;
  const auto is_align = [](char c) { return std::string_view("<>^=").find(c) != std::string_view::npos; };
  if (!text.empty()) {
    size_t after = 0;
    const char32_t fill = next_code_point(text, after);
    if (after < text.size() && is_align(text[after])) {
      spec.fill = fill;
      fill_given = true;
      spec.align = text[after];
      at = after + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  const auto take = [&](std::string_view set) {
    return at < text.size() && set.find(text[at]) != std::string_view::npos ? text[at++] : '\0';
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (take("0") && !fill_given) {
    spec.fill = '0';
    if (spec.align == 0 && number) spec.align = '=';
  }
  spec.width = read_number(text, at);
  spec.group = take(",_");
  if (take(".")) {
    if (at >= text.size() || !is_digit(text[at])) fail("format specifier missing precision");
    spec.precision = read_number(text, at);
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) fail("invalid format specifier '{}'", text);
  return spec;
}

std::string format_value(Runtime& runtime, const Value& value, std::string_view text) {
  if (text.empty()) return to_str(runtime, value);
  if (value.is_number()) {
    const FormatSpec spec = parse_spec(text, true);
    if (value.kind() == Kind::real) return format_real(spec, value.as_real());
    return format_int(spec, value.as_integer());
  }
  if (!value.is_string() && !value.is_undefined())
    fail("unsupported format string passed to {}.__format__", type_name(value));
  const FormatSpec spec = parse_spec(text, false);
  if (spec.type != 0 && spec.type != 's') fail("unknown format code '{}' for a string", spec.type);
  if (spec.align == '=' || spec.group != 0 || spec.alternate || spec.sign != '-')
    fail("the format '{}' does not fit a string", text);
  return pad(spec, first_code_points(to_str(runtime, value), spec.precision), '<');
}

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const Args& args, bool markup)
      : runtime_(runtime), args_(args), markup_(markup) {}

  std::string format(std::string_view text, int depth) {
    if (depth > 2) fail("max string recursion exceeded in str.format");
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const char c = text[at++];
      if (c != '{' && c != '}') {
        out += c;
        continue;
      }
      if (at < text.size() && text[at] == c) {
        out += c;
        ++at;
        continue;
      }
      if (c == '}') fail("single '}}' encountered in format string");
      out += field(text, at, depth);
      Runtime::check_size(static_cast<int64_t>(out.size()));
      runtime_.charge(1);
    }
    return out;
  }

 private:
  std::string field(std::string_view text, size_t& at, int depth) {
    size_t end = at;
    for (int open = 1; end < text.size(); ++end) {
      open += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
      if (open == 0) break;
    }
    if (end >= text.size()) fail("expected '}}' before end of string");
    const std::string_view inside = text.substr(at, end - at);
    at = end + 1;
    size_t name_end = 0;
    for (int bracket = 0; name_end < inside.size(); ++name_end) {
      const char c = inside[name_end];
      if (c == '[') ++bracket;
      if (c == ']') --bracket;
      if (bracket <= 0 && (c == ':' || c == '!')) break;
    }
    Value value = lookup(inside.substr(0, name_end));
    std::string_view rest = inside.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':'))
        fail("expected ':' after conversion specifier");
      value = convert(value, rest[1]);
      rest.remove_prefix(2);
    }
    if (!rest.empty()) rest.remove_prefix(1);
    const std::string spec = format(rest, depth + 1);
    if (markup_ && spec.empty()) return escaped(runtime_, value);
    const std::string result = format_value(runtime_, value, spec);
    return markup_ ? escape_html(result) : result;
  }

  Value convert(const Value& value, char conversion) {
    if (conversion == 's') return runtime_.string(to_str(runtime_, value));
    if (conversion == 'r') return runtime_.string(to_repr(runtime_, value));
    if (conversion == 'a') return runtime_.string(ascii_repr(runtime_, value));
    fail("unknown conversion specifier '{}'", conversion);
  }

  Value lookup(std::string_view name) {
    const size_t head = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, head));
    for (size_t at = head; at < name.size();) {
      const bool bracket = name[at] == '[';
      if (!bracket && name[at] != '.') fail("only '.' or '[' may follow ']' in a format field");
      const size_t end =
          bracket ? name.find(']', at) : std::min(name.find_first_of(".[", at + 1), name.size());
      if (end == std::string_view::npos) fail("missing ']' in format string");
      const std::string_view part = name.substr(at + 1, end - at - 1);
      if (part.empty()) fail("empty attribute in format string");
      int64_t index = 0;
      if (!bracket) {
        value = get_attribute(runtime_, value, part);
      } else if (is_number(part, index)) {
        value = get_item(runtime_, value, Value::integer(index));
      } else {
        value = get_item(runtime_, value, runtime_.string(std::string(part)));
      }
      at = bracket ? end + 1 : end;
    }
    return value;
  }

  static bool is_number(std::string_view text, int64_t& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() && text[0] != '-';
  }

  const Value& argument(std::string_view name) {
    int64_t index = 0;
    const bool numbered = !name.empty() && is_number(name, index);
    if (numbered || name.empty()) {
      if (mode_ == (numbered ? Mode::automatic : Mode::manual))
        fail("cannot mix automatic field numbering and field numbers");
      mode_ = numbered ? Mode::manual : Mode::automatic;
      if (!numbered) index = next_++;
      if (index >= static_cast<int64_t>(args_.positional.size())) fail("format has no argument {}", index);
      return args_.positional[static_cast<size_t>(index)];
    }
    for (const auto& [key, value] : args_.named)
      if (key == name) return value;
    fail("format has no argument '{}'", name);
  }

  enum class Mode { undecided, automatic, manual };
  Runtime& runtime_;
  const Args& args_;
  bool markup_;
  Mode mode_ = Mode::undecided;
  int64_t next_ = 0;
};

}  // namespace

Value percent_format(Runtime& runtime, const Value& format, const Value& values) {
  const std::string_view text = format.text();
  const bool markup = format.as_str().markup;
  PercentValues source(runtime, values);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '%') {
      out += text[at++];
      continue;
    }
    ++at;
    out += percent_directive(runtime, text, at, source, markup);
    Runtime::check_size(static_cast<int64_t>(out.size()));
    runtime.charge(1);
  }
  source.finish();
  runtime.charge_scan(text.size());
  return runtime.string(std::move(out), markup);
}

Value brace_format(Runtime& runtime, const Value& format, const Args& args) {
  const bool markup = format.as_str().markup;
  std::string out = BraceFormatter(runtime, args, markup).format(format.text(), 0);
  return runtime.string(std::move(out), markup);
}

}  // namespace atom::jinja
