// Filters that make numbers, and the reading of numbers from text as int() and float() do it.
#include <charconv>
#include <cmath>

#include "text/jinja_filters.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

// Strips white space and the underscores between digits; nothing where an underscore stands wrong.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  const std::string_view body = strip(text, true, true);
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '_') {
      out += body[i];
    } else if (i == 0 || i + 1 == body.size() || !std::isalnum(static_cast<unsigned char>(body[i - 1])) ||
               !std::isalnum(static_cast<unsigned char>(body[i + 1]))) {
      return {};
    }
  }
  return out;
}

std::optional<Int> parse_int(std::string_view source, int base) {
  const auto clean = without_underscores(source);
  if (!clean) return {};
  std::string_view text = *clean;
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    const int prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefix != 0 && (base == prefix || base == 0)) {
      base = prefix;
      text.remove_prefix(2);
    }
  }
  if (base == 0) {
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string_view::npos) return {};
    base = 10;
  }
  if (text.empty()) return {};
  Int value = 0;
  for (const char c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c))) return {};
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    if (digit >= base) return {};
    if (__builtin_mul_overflow(value, Int{base}, &value) || __builtin_add_overflow(value, Int{digit}, &value))
      fail("an integer grows beyond 128 bits");
  }
  return negative ? -value : value;
}

std::optional<double> parse_real(std::string_view source) {
  const auto clean = without_underscores(source);
  if (!clean) return {};
  std::string_view text = *clean;
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.empty() || text[0] == '-') return {};
  double value = 0;
  const std::string lower = to_lower(text);
  if (lower == "inf" || lower == "infinity") {
    value = HUGE_VAL;
  } else if (lower == "nan") {
    value = std::nan("");
  } else if (lower.find_first_not_of("0123456789.e+-") != std::string::npos) {
    return {};
  } else {
    const auto [end, error] = std::from_chars(lower.data(), lower.data() + lower.size(), value);
    if (end != lower.data() + lower.size() || error == std::errc::invalid_argument) return {};
    // Out of range leaves `value` alone; strtod says whether it is too large or too small.
    if (error == std::errc::result_out_of_range) value = std::strtod(lower.c_str(), nullptr);
  }
  return negative ? -value : value;
}

// float() of anything; nothing where Python raises TypeError or ValueError.
std::optional<double> to_real(const Value& value) {
  require_defined(value);
  if (value.is_string()) return parse_real(value.text());
  if (value.is_number()) return value.as_real();
  return {};
}

// Rounds to `digits` decimals, half to even by the exact value.
double round_real(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < -308) return 0 * value;
  if (digits >= 0) {
    const std::string text = fmt::format("{:.{}f}", value, digits);
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }
  const double power = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / power) * power;
}

Int round_int(Int value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -37) return 0;
  Int power = 1;
  for (int64_t i = 0; i < -digits; ++i) power *= 10;
  Int quotient = value / power, rest = value % power;
  if (rest < 0) {
    rest += power;
    --quotient;
  }
  const Int twice = rest - (power - rest);
  if (twice > 0 || (twice == 0 && (quotient & 1) != 0)) ++quotient;
  return quotient * power;
}

}  // namespace

ATOM_JINJA_FILTER(abs) {
  static_cast<void>(runtime);
  bind("abs", args, {}, 0);
  require_defined(self);
  if (self.kind() == Kind::real) return Value::real(std::abs(self.as_real()));
  if (!self.is_integral()) fail("bad operand type for abs(): '{}'", type_name(self));
  return self.as_integer() < 0 ? negate(self) : positive(self);
}

ATOM_JINJA_FILTER(int) {
  const Bound bound = bind("int", args, {"default", "base"}, 0);
  const Value otherwise = bound[0] == nullptr ? Value::integer(0) : *bound[0];
  const auto base = static_cast<int>(int_argument(bound[1], 10, "int: base"));
  require_defined(self);
  if (self.is_integral()) return Value::integer(self.as_integer());
  if (self.is_string()) {
    if (base != 0 && (base < 2 || base > 36)) return otherwise;
    runtime.charge_scan(self.text().size());
    if (const auto value = parse_int(self.text(), base)) return Value::integer(*value);
  }
  const auto value = to_real(self);
  if (value && std::isinf(*value) && self.kind() == Kind::real)
    fail("cannot convert float infinity to integer");
  if (!value || !std::isfinite(*value)) return otherwise;
  return Value::integer(real_to_int(*value));
}

ATOM_JINJA_FILTER(float) {
  const Bound bound = bind("float", args, {"default"}, 0);
  runtime.charge(1);
  const auto value = to_real(self);
  if (value) return Value::real(*value);
  return bound[0] == nullptr ? Value::real(0) : *bound[0];
}

ATOM_JINJA_FILTER(round) {
  const Bound bound = bind("round", args, {"precision", "method"}, 0);
  const std::string method = bound[1] == nullptr ? "common" : to_str(runtime, *bound[1]);
  if (method != "common" && method != "ceil" && method != "floor")
    fail("round: method must be common, ceil or floor");
  const int64_t digits = int_argument(bound[0], 0, "round: precision");
  require_defined(self);
  if (!self.is_number()) fail("round: expected a number, not {}", type_name(self));
  if (method == "common") {
    if (self.is_integral()) return Value::integer(round_int(self.as_integer(), digits));
    return Value::real(round_real(self.as_real(), digits));
  }
  if (digits > 300 || digits < -300) fail("round: a precision of {} is not supported", digits);
  const double power = std::pow(10.0, static_cast<double>(digits)), scaled = self.as_real() * power;
  if (!std::isfinite(scaled)) fail("round: cannot convert {} to an integer", real_to_str(scaled));
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power);
}

}  // namespace atom::jinja
