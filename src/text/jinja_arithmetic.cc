// + - * / // % ** as Python has them, for numbers, strings and lists.
#include <cmath>

#include <fmt/format.h>

#include "text/jinja_format.h"
#include "text/jinja_operators.h"

namespace atom::jinja {
namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void fail_operands(BinaryOp op, const Value& a, const Value& b) {
  fail("unsupported operand type(s) for {}: '{}' and '{}'", kSymbols[static_cast<int>(op)], type_name(a),
       type_name(b));
}

[[noreturn]] void fail_overflow() { fail("an integer grows beyond 128 bits"); }

Int int_power(Int base, Int exponent) {
  Int result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return result;
}

Value real_power(double a, double b) {
  if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b))
    fail("complex numbers are not supported");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("the result of ** is too large");
  return Value::real(result);
}

Value int_arithmetic(BinaryOp op, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case BinaryOp::add:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOp::sub:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOp::mul:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOp::pow:
      if (b >= 0) return Value::integer(int_power(a, b));
      return real_power(static_cast<double>(a), static_cast<double>(b));
    default:
      break;
  }
  if (b == 0) fail("division by zero");
  if (op == BinaryOp::div) return Value::real(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {  // the only quotient that can overflow
    if (op == BinaryOp::mod) return Value::integer(0);
    if (__builtin_sub_overflow(Int{0}, a, &result)) fail_overflow();
    return Value::integer(result);
  }
  Int quotient = a / b, rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    --quotient;
  }
  return Value::integer(op == BinaryOp::mod ? rest : quotient);
}

Value real_arithmetic(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::add:
      return Value::real(a + b);
    case BinaryOp::sub:
      return Value::real(a - b);
    case BinaryOp::mul:
      return Value::real(a * b);
    case BinaryOp::pow:
      return real_power(a, b);
    default:
      break;
  }
  if (b == 0) fail("float division by zero");
  if (op == BinaryOp::div) return Value::real(a / b);
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    quotient -= 1;
  } else if (rest == 0) {
    rest = std::copysign(0.0, b);
  }
  if (op == BinaryOp::mod) return Value::real(rest);
  if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
  const double floor = std::floor(quotient);
  return Value::real(quotient - floor > 0.5 ? floor + 1 : floor);
}

Value repeat(Runtime& runtime, const Value& sequence, Int times) {
  if (times < 0) times = 0;
  if (sequence.is_string()) {
    const std::string& text = sequence.text();
    if (times > kMaxStringBytes) times = text.empty() ? 0 : times;
    if (!text.empty() && times > kMaxStringBytes / static_cast<int64_t>(text.size()))
      Runtime::check_size(kMaxStringBytes + 1);
    runtime.charge_scan(text.size() * static_cast<size_t>(times));
    std::string out;
    out.reserve(text.size() * static_cast<size_t>(times));
    for (Int i = 0; i < times && !text.empty(); ++i) out += text;
    return runtime.string(std::move(out), sequence.as_str().markup);
  }
  const List& list = sequence.as_list();
  if (list.items.empty() || times == 0) return runtime.list({}, list.type);
  const Int count = static_cast<Int>(list.items.size()) * std::min<Int>(times, Int{1} << 40);
  if (count > 10'000'000) fail("a list of {} elements is too long", int_to_str(count));
  runtime.charge(static_cast<int64_t>(count));
  runtime.charge_bytes(static_cast<int64_t>(count) * static_cast<int64_t>(sizeof(Value)));
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count));
  for (Int i = 0; i < times; ++i) items.insert(items.end(), list.items.begin(), list.items.end());
  return runtime.list(std::move(items), list.type);
}

Value add_strings(Runtime& runtime, const Str& a, const Str& b) {
  const bool markup = a.markup || b.markup;
  const std::string left = markup && !a.markup ? escape_html(a.text) : std::string();
  const std::string right = markup && !b.markup ? escape_html(b.text) : std::string();
  const std::string& x = markup && !a.markup ? left : a.text;
  const std::string& y = markup && !b.markup ? right : b.text;
  Runtime::check_size(static_cast<int64_t>(x.size() + y.size()));
  runtime.charge_scan(x.size() + y.size());
  std::string out;
  out.reserve(x.size() + y.size());
  out += x;
  out += y;
  return runtime.string(std::move(out), markup);
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string escaped(Runtime& runtime, const Value& value) {
  if (value.is_string() && value.as_str().markup) return value.text();
  const std::string text = to_str(runtime, value);
  runtime.charge_scan(text.size());
  return escape_html(text);
}

Value arithmetic(Runtime& runtime, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return int_arithmetic(op, a.as_integer(), b.as_integer());
    return real_arithmetic(op, a.as_real(), b.as_real());
  }
  if (op == BinaryOp::add && a.is_string() && b.is_string())
    return add_strings(runtime, a.as_str(), b.as_str());
  if (op == BinaryOp::mod && a.is_string()) return percent_format(runtime, a, b);
  require_defined(a);
  require_defined(b);
  if (op == BinaryOp::add && a.is_list() && b.is_list()) {
    const List &x = a.as_list(), &y = b.as_list();
    if ((x.type == List::Type::list) != (y.type == List::Type::list)) fail_operands(op, a, b);
    runtime.charge(static_cast<int64_t>(x.items.size() + y.items.size()));
    std::vector<Value> items = x.items;
    items.insert(items.end(), y.items.begin(), y.items.end());
    return runtime.list(std::move(items), x.type == List::Type::list ? x.type : List::Type::tuple);
  }
  if (op == BinaryOp::mul) {
    if ((a.is_string() || a.is_list()) && b.is_integral()) return repeat(runtime, a, b.as_integer());
    if ((b.is_string() || b.is_list()) && a.is_integral()) return repeat(runtime, b, a.as_integer());
  }
  fail_operands(op, a, b);
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.kind() == Kind::real) return Value::real(-value.as_real());
  if (!value.is_integral()) fail("bad operand type for unary -: '{}'", type_name(value));
  Int result = 0;
  if (__builtin_sub_overflow(Int{0}, value.as_integer(), &result)) fail_overflow();
  return Value::integer(result);
}

Value positive(const Value& value) {
  require_defined(value);
  if (value.kind() == Kind::real) return value;
  if (!value.is_integral()) fail("bad operand type for unary +: '{}'", type_name(value));
  return Value::integer(value.as_integer());
}

Int real_to_int(double value) {
  if (!std::isfinite(value)) fail("cannot convert {} to an integer", real_to_str(value));
  if (std::abs(value) >= 0x1p126) fail_overflow();
  return static_cast<Int>(value);
}

}  // namespace atom::jinja
