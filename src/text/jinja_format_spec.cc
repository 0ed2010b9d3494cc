// Numbers and padding by a format specification.
#include <cmath>

#include <fmt/format.h>

#include "text/jinja_format.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

std::string digits_of(Int value, int base, bool capitals) {
  unsigned __int128 rest =
      value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  const char* symbols = capitals ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do {
    out.insert(out.begin(), symbols[static_cast<int>(rest % static_cast<unsigned>(base))]);
    rest /= static_cast<unsigned>(base);
  } while (rest != 0);
  return out;
}

// Puts `mark` between groups of the leading digits.
std::string grouped(std::string text, char mark, size_t size) {
  size_t end = 0;
  while (end < text.size() && std::isxdigit(static_cast<unsigned char>(text[end]))) ++end;
  if (text.find_first_not_of("0123456789") < end && size == 3) end = text.find_first_not_of("0123456789");
  for (size_t at = end; at > size;) {
    at -= size;
    text.insert(at, 1, mark);
  }
  return text;
}

std::string sign_of(const FormatSpec& spec, bool negative) {
  if (negative) return "-";
  return spec.sign == '-' ? "" : std::string(1, spec.sign);
}

std::string pad_number(const FormatSpec& spec, const std::string& prefix, const std::string& digits) {
  if (spec.align != '=') return pad(spec, prefix + digits, '>');
  FormatSpec inner = spec;
  inner.align = '>';
  const auto taken = static_cast<int64_t>(prefix.size());
  inner.width = spec.width > taken ? spec.width - taken : 0;
  return prefix + pad(inner, digits, '>');
}

}  // namespace

std::string pad(const FormatSpec& spec, std::string text, char default_align) {
  const int64_t missing = spec.width - count_code_points(text);
  if (missing <= 0) return text;
  Runtime::check_size(missing * 4);
  std::string fill;
  append_code_point(fill, spec.fill);
  const char align = spec.align == 0 ? default_align : spec.align;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

std::string format_int(const FormatSpec& spec, Int value) {
  if (spec.precision >= 0) fail("precision not allowed in the format of an integer");
  int base = 10;
  std::string prefix = sign_of(spec, value < 0);
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
      break;
    case 'x':
    case 'X':
      base = 16;
      break;
    case 'o':
      base = 8;
      break;
    case 'b':
      base = 2;
      break;
    case 'c': {
      if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
        fail("{} is no character", int_to_str(value));
      std::string text;
      append_code_point(text, static_cast<char32_t>(value));
      return pad(spec, text, '<');
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case '%':
      return format_real(spec, static_cast<double>(value));
    default:
      fail("unknown format code '{}' for an integer", spec.type);
  }
  if (spec.alternate && base != 10) prefix += std::string("0") + spec.type;
  std::string digits = digits_of(value, base, spec.type == 'X');
  if (spec.group != 0) digits = grouped(digits, spec.group, base == 10 ? 3 : 4);
  return pad_number(spec, prefix, digits);
}

std::string format_real(const FormatSpec& spec, double value) {
  constexpr int64_t kMaxPrecision = 1000;
  if (spec.precision > kMaxPrecision)
    fail("a precision of more than {} digits is not supported", kMaxPrecision);
  char type = spec.type;
  const bool plain = type == 0;  // like repr, but %g with a precision
  if (std::string_view("eEfFgGn%").find(type) == std::string_view::npos && !plain)
    fail("unknown format code '{}' for a float", type);
  if (type == 'n') type = 'g';
  const double magnitude = std::abs(type == '%' ? value * 100 : value);
  const std::string prefix = sign_of(spec, std::signbit(value) && !std::isnan(value));
  std::string digits;
  if (!std::isfinite(magnitude)) {
    digits = std::isnan(magnitude) ? "nan" : "inf";
    if (type == 'E' || type == 'F' || type == 'G') digits = to_upper(digits);
    if (type == '%') digits += '%';
  } else if (plain && spec.precision < 0) {
    digits = real_to_str(magnitude);
  } else {
    const char letter = plain ? 'g' : type == '%' ? 'f' : type;
    const auto precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
    const std::string pattern = fmt::format("%{}.*{}", spec.alternate ? "#" : "", letter);
    const int size = std::snprintf(nullptr, 0, pattern.c_str(), precision, magnitude);
    digits.resize(static_cast<size_t>(size) + 1);
    std::snprintf(digits.data(), digits.size(), pattern.c_str(), precision, magnitude);
    digits.pop_back();
    if (plain && digits.find_first_not_of("0123456789") == std::string::npos) digits += ".0";
    if (type == '%') digits += '%';
  }
  if (spec.group != 0) digits = grouped(digits, spec.group, 3);
  return pad_number(spec, prefix, digits);
}

}  // namespace atom::jinja
