// What values have in common: type names, key lookup, and the defaults of objects.
#include "text/jinja_value.h"

#include <fmt/format.h>

#include "text/jinja_runtime.h"

namespace atom::jinja {

std::string Object::repr(Runtime&, int) const { return fmt::format("<{} object>", type_name()); }
Value Object::call(Runtime&, const Args&) { fail("'{}' object is not callable", type_name()); }
std::optional<Value> Object::attribute(Runtime&, std::string_view) { return {}; }
std::optional<Value> Object::item(Runtime&, const Value&) { return {}; }
std::shared_ptr<const List> Object::iterate(Runtime&) { return nullptr; }

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items)
    if (name.is_string() && name.text() == key) return &value;
  return nullptr;
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::string:
      return value.as_str().markup ? "Markup" : "str";
    case Kind::list:
      return value.as_list().type == List::Type::list ? "list" : "tuple";
    case Kind::dict:
      return "dict";
    case Kind::undefined:
      return "Undefined";
    case Kind::object:
      return value.as_object()->type_name();
  }
  return {};
}

}  // namespace atom::jinja
