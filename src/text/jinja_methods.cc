// Methods of dicts, lists and tuples, and what the sandbox hides.
#include "text/jinja_methods.h"

#include <algorithm>

#include "text/jinja_objects.h"
#include "text/jinja_operators.h"

namespace atom::jinja {
namespace {

#define METHOD(name) Value name(Runtime& runtime, const Value& self, const Args& args)

METHOD(dict_get) {
  const Bound bound = bind("get", args, {"key", "default"}, 1);
  if (!hashable(*bound[0])) fail("unhashable type: '{}'", type_name(*bound[0]));
  const Value* value = dict_find(runtime, self.as_dict(), *bound[0]);
  if (value != nullptr) return *value;
  return bound[1] == nullptr ? Value() : *bound[1];
}

Value view(Runtime& runtime, const char* type, std::vector<Value> items) {
  runtime.charge(static_cast<int64_t>(items.size()));
  return Value(runtime.make<View>(type, runtime.list(std::move(items)).list_ref()));
}

METHOD(dict_keys) {
  bind("keys", args, {}, 0);
  return view(runtime, "dict_keys", items_of(runtime, self)->items);
}

METHOD(dict_values) {
  bind("values", args, {}, 0);
  std::vector<Value> values;
  for (const auto& [key, value] : self.as_dict().items) values.push_back(value);
  return view(runtime, "dict_values", std::move(values));
}

METHOD(dict_items) {
  bind("items", args, {}, 0);
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.as_dict().items) pairs.push_back(runtime.tuple({key, value}));
  return view(runtime, "dict_items", std::move(pairs));
}

METHOD(copy) {  // values are immutable, so it is its own copy
  static_cast<void>(runtime);
  bind("copy", args, {}, 0);
  return self;
}

METHOD(list_count) {
  const Bound bound = bind("count", args, {"value"}, 1);
  int64_t count = 0;
  for (const Value& item : self.as_list().items)
    count += item.same(*bound[0]) || equals(runtime, item, *bound[0]);
  return Value::integer(count);
}

METHOD(list_index) {
  const Bound bound = bind("index", args, {"value", "start", "stop"}, 1);
  const auto& items = self.as_list().items;
  const auto bound_value = [&](size_t i) { return bound[i] == nullptr ? Value() : *bound[i]; };
  const SliceRange range =
      resolve_slice(static_cast<int64_t>(items.size()), bound_value(1), bound_value(2), Value());
  for (int64_t i = range.start; i < range.start + range.count; ++i) {
    const Value& item = items[static_cast<size_t>(i)];
    if (item.same(*bound[0]) || equals(runtime, item, *bound[0])) return Value::integer(i);
  }
  fail("{} is not in list", to_repr(runtime, *bound[0]));
}

constexpr NamedNative kDictMethods[] = {
    {"copy", copy}, {"get", dict_get}, {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}};
constexpr NamedNative kListMethods[] = {{"copy", copy}, {"count", list_count}, {"index", list_index}};
constexpr NamedNative kTupleMethods[] = {{"count", list_count}, {"index", list_index}};

// What would change a value, and the class methods: Jinja's immutable sandbox does not give them out.
constexpr std::string_view kHiddenOfDict[] = {"clear", "fromkeys", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kHiddenOfList[] = {"append", "clear",  "extend",  "insert",
                                              "pop",    "remove", "reverse", "sort"};

template <size_t n>
bool has(const std::string_view (&names)[n], std::string_view name) {
  return std::find(names, names + n, name) != names + n;
}

}  // namespace

const NamedNative* find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::string:
      return find_string_method(name);
    case Kind::dict:
      return find_native(kDictMethods, name);
    case Kind::list:
      return self.as_list().type == List::Type::list ? find_native(kListMethods, name)
                                                     : find_native(kTupleMethods, name);
    default:
      return nullptr;
  }
}

bool is_hidden_attribute(const Value& self, std::string_view name) {
  if (name.size() > 4 && name.substr(0, 2) == "__" && name.substr(name.size() - 2) == "__") return true;
  if (self.is_dict()) return has(kHiddenOfDict, name);
  return self.is_list() && self.as_list().type == List::Type::list && has(kHiddenOfList, name);
}

}  // namespace atom::jinja
