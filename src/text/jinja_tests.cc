// The tests behind `is`. (Unit tests are in the files that end in _test.cc.)
#include "text/jinja_objects.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

#define TEST_FUNCTION(name) Value name(Runtime& runtime, const Value& self, const Args& args)
// A test without arguments.
#define PLAIN(name, condition)                                     \
  Value is_##name(Runtime&, const Value& self, const Args& args) { \
    bind(#name, args, {}, 0);                                      \
    return Value::boolean(condition);                              \
  }

PLAIN(boolean, self.kind() == Kind::boolean)
// An undefined value can be called (only to fail), so Python finds it callable; it has a length and items
// likewise.
PLAIN(callable, self.is_undefined() || (self.is_object() && self.as_object()->callable()))
PLAIN(defined, !self.is_undefined())
PLAIN(undefined, self.is_undefined())
PLAIN(escaped, self.is_string() && self.as_str().markup)
PLAIN(false, self.kind() == Kind::boolean && !self.as_boolean())
PLAIN(true, self.kind() == Kind::boolean && self.as_boolean())
PLAIN(filter, self.is_string() && find_filter(self.text()) != nullptr)
PLAIN(test, self.is_string() && find_test(self.text()) != nullptr)
PLAIN(float, self.kind() == Kind::real)
PLAIN(integer, self.kind() == Kind::integer)
PLAIN(number, self.is_number())
PLAIN(iterable, is_iterable(self))
PLAIN(mapping, self.is_dict())
PLAIN(none, self.is_none())
PLAIN(string, self.is_string())
#undef PLAIN

Value is_sequence(Runtime&, const Value& self, const Args& args) {
  bind("sequence", args, {}, 0);
  if (self.is_object()) return Value::boolean(self.as<Range>() != nullptr);
  return Value::boolean(length_of(self).has_value());
}

TEST_FUNCTION(is_lower) {
  bind("lower", args, {}, 0);
  return Value::boolean(text_is("islower", to_str(runtime, self)));
}

TEST_FUNCTION(is_upper) {
  bind("upper", args, {}, 0);
  return Value::boolean(text_is("isupper", to_str(runtime, self)));
}

bool remainder_is(Runtime& runtime, const Value& value, const Value& divisor, int rest) {
  return equals(runtime, arithmetic(runtime, BinaryOp::mod, value, divisor), Value::integer(rest));
}

TEST_FUNCTION(is_odd) {
  bind("odd", args, {}, 0);
  return Value::boolean(remainder_is(runtime, self, Value::integer(2), 1));
}

TEST_FUNCTION(is_even) {
  bind("even", args, {}, 0);
  return Value::boolean(remainder_is(runtime, self, Value::integer(2), 0));
}

TEST_FUNCTION(is_divisibleby) {
  return Value::boolean(remainder_is(runtime, self, *bind("divisibleby", args, {"num"}, 1)[0], 0));
}

const Value& other(const Args& args, std::string_view name) { return *bind(name, args, {"other"}, 1)[0]; }

TEST_FUNCTION(is_eq) { return Value::boolean(equals(runtime, self, other(args, "eq"))); }
TEST_FUNCTION(is_ne) { return Value::boolean(!equals(runtime, self, other(args, "ne"))); }
TEST_FUNCTION(is_lt) { return Value::boolean(compare(runtime, self, other(args, "lt"), "<") == -1); }
TEST_FUNCTION(is_le) { return Value::boolean(compare(runtime, self, other(args, "le"), "<=") <= 0); }
TEST_FUNCTION(is_gt) { return Value::boolean(compare(runtime, self, other(args, "gt"), ">") == 1); }
TEST_FUNCTION(is_ge) {
  const int order = compare(runtime, self, other(args, "ge"), ">=");
  return Value::boolean(order == 0 || order == 1);
}
TEST_FUNCTION(is_in) { return Value::boolean(contains(runtime, *bind("in", args, {"seq"}, 1)[0], self)); }
Value is_sameas(Runtime&, const Value& self, const Args& args) {
  return Value::boolean(self.same(other(args, "sameas")));
}

constexpr NamedNative kTests[] = {
    {"!=", is_ne},
    {"<", is_lt},
    {"<=", is_le},
    {"==", is_eq},
    {">", is_gt},
    {">=", is_ge},
    {"boolean", is_boolean},
    {"callable", is_callable},
    {"defined", is_defined},
    {"divisibleby", is_divisibleby},
    {"eq", is_eq},
    {"equalto", is_eq},
    {"escaped", is_escaped},
    {"even", is_even},
    {"false", is_false},
    {"filter", is_filter},
    {"float", is_float},
    {"ge", is_ge},
    {"greaterthan", is_gt},
    {"gt", is_gt},
    {"in", is_in},
    {"integer", is_integer},
    {"iterable", is_iterable},
    {"le", is_le},
    {"lessthan", is_lt},
    {"lower", is_lower},
    {"lt", is_lt},
    {"mapping", is_mapping},
    {"ne", is_ne},
    {"none", is_none},
    {"number", is_number},
    {"odd", is_odd},
    {"sameas", is_sameas},
    {"sequence", is_sequence},
    {"string", is_string},
    {"test", is_test},
    {"true", is_true},
    {"undefined", is_undefined},
    {"upper", is_upper},
};

}  // namespace

const NamedNative* find_test(std::string_view name) { return find_native(kTests, name); }

}  // namespace atom::jinja
