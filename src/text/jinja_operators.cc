// Truth, equality, order and membership.
#include "text/jinja_operators.h"

#include <cmath>

#include "text/jinja_objects.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

constexpr int kUnordered = 2;  // NaN

template <class T>
int sign(T a, T b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

// Exact, also where a double cannot hold the integer.
int compare_int_real(Int a, double b) {
  if (std::isnan(b)) return kUnordered;
  if (std::abs(b) >= 0x1p126) return b > 0 ? -1 : 1;
  const double whole = std::trunc(b);
  if (const int order = sign(a, static_cast<Int>(whole)); order != 0) return order;
  return sign(whole, b);
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return sign(a.as_integer(), b.as_integer());
  if (a.is_integral()) return compare_int_real(a.as_integer(), b.as_real());
  if (b.is_integral()) {
    const int order = compare_int_real(b.as_integer(), a.as_real());
    return order == kUnordered ? order : -order;
  }
  if (std::isnan(a.as_real()) || std::isnan(b.as_real())) return kUnordered;
  return sign(a.as_real(), b.as_real());
}

bool is_tuple(const Value& value) { return value.as_list().type != List::Type::list; }

// Python looks at identity first, so a NaN in a list equals itself.
bool same_or_equal(Runtime& runtime, const Value& a, const Value& b) {
  return a.same(b) || equals(runtime, a, b);
}

bool equal_dicts(Runtime& runtime, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    const Value* other = dict_find(runtime, b, key);
    if (other == nullptr || !same_or_equal(runtime, value, *other)) return false;
  }
  return true;
}

}  // namespace

void fail_undefined(const Value& value) { fail("{}", value.as_undefined().message); }

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
    case Kind::undefined:
      return false;
    case Kind::boolean:
      return value.as_boolean();
    case Kind::integer:
      return value.as_integer() != 0;
    case Kind::real:
      return value.as_real() != 0;
    case Kind::string:
      return !value.text().empty();
    case Kind::list:
      return !value.as_list().items.empty();
    case Kind::dict:
      return !value.as_dict().items.empty();
    case Kind::object:
      return value.as_object()->truthy();
  }
  return false;
}

bool equals(Runtime& runtime, const Value& a, const Value& b) {
  runtime.charge(1);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::string:
      runtime.charge_scan(a.text().size());
      return a.text() == b.text();
    case Kind::list: {
      const auto &x = a.as_list().items, &y = b.as_list().items;
      if (is_tuple(a) != is_tuple(b) || x.size() != y.size()) return false;
      for (size_t i = 0; i < x.size(); ++i)
        if (!same_or_equal(runtime, x[i], y[i])) return false;
      return true;
    }
    case Kind::dict:
      return equal_dicts(runtime, a.as_dict(), b.as_dict());
    case Kind::none:
    case Kind::undefined:
      return true;
    case Kind::object: {
      const auto *x = a.as<Range>(), *y = b.as<Range>();
      if (x != nullptr && y != nullptr) return x->equals(*y);
      if (a.as<View>() != nullptr && b.as<View>() != nullptr && !a.same(b))
        fail("comparing two dict views is not supported; make lists of them");
      return a.same(b);
    }
    default:
      return false;
  }
}

int compare(Runtime& runtime, const Value& a, const Value& b, std::string_view op) {
  runtime.charge(1);
  require_defined(a);
  require_defined(b);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_string() && b.is_string()) {
    runtime.charge_scan(a.text().size());
    return sign(a.text().compare(b.text()), 0);  // the order of UTF-8 bytes is that of code points
  }
  if (a.is_list() && b.is_list() && is_tuple(a) == is_tuple(b)) {
    const auto &x = a.as_list().items, &y = b.as_list().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!same_or_equal(runtime, x[i], y[i])) return compare(runtime, x[i], y[i], op);
    return sign(x.size(), y.size());
  }
  fail("'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b));
}

bool less(Runtime& runtime, const Value& a, const Value& b) { return compare(runtime, a, b, "<") == -1; }

bool contains(Runtime& runtime, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::string:
      if (!item.is_string()) fail("'in <string>' requires string as left operand, not {}", type_name(item));
      runtime.charge_scan(container.text().size());
      return find_text(container.text(), item.text()) != std::string_view::npos;
    case Kind::dict:
      if (!hashable(item)) fail("unhashable type: '{}'", type_name(item));
      return dict_find(runtime, container.as_dict(), item) != nullptr;
    default:
      break;
  }
  if (!is_iterable(container)) fail("argument of type '{}' is not iterable", type_name(container));
  const auto list = items_of(runtime, container);
  for (const Value& candidate : list->items)
    if (same_or_equal(runtime, candidate, item)) return true;
  return false;
}

}  // namespace atom::jinja
