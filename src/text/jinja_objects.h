// The objects that builtins make: ranges, dict views, generators, namespaces, functions, bound methods.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_operators.h"
#include "text/jinja_value.h"

namespace atom::jinja {

// range(start, stop, step), never longer than kMaxRange.
struct Range final : Object {
  Range(Int start, Int stop, Int step, int64_t count) : start(start), stop(stop), step(step), count(count) {}
  Int start, stop, step;
  int64_t count;

  const char* type_name() const override { return "range"; }
  std::string repr(Runtime&, int) const override;
  bool truthy() const override { return count > 0; }
  std::optional<int64_t> length() const override { return count; }
  std::optional<Value> item(Runtime&, const Value& key) override;
  std::shared_ptr<const List> iterate(Runtime& runtime) override;
  bool iterable() const override { return true; }
  bool equals(const Range& other) const;
};

// dict.keys(), .values() or .items().
struct View final : Object {
  View(const char* type, std::shared_ptr<const List> list) : type(type), list(std::move(list)) {}
  const char* type;  // "dict_keys" and so on
  std::shared_ptr<const List> list;

  const char* type_name() const override { return type; }
  std::string repr(Runtime& runtime, int depth) const override;
  bool truthy() const override { return !list->items.empty(); }
  std::optional<int64_t> length() const override { return static_cast<int64_t>(list->items.size()); }
  std::shared_ptr<const List> iterate(Runtime&) override { return list; }
  bool iterable() const override { return true; }
  int depth() const override { return list->depth; }
};

// What map, select and their like return: no length, no index, and used up by one pass.
struct Generator final : Object {
  explicit Generator(std::shared_ptr<const List> list) : list(std::move(list)) {}
  std::shared_ptr<const List> list;  // null once used

  const char* type_name() const override { return "generator"; }
  std::shared_ptr<const List> iterate(Runtime& runtime) override;
  bool iterable() const override { return true; }
  int depth() const override { return list ? list->depth : 1; }
  // The first element left, which it gives up; nothing at the end.
  std::optional<Value> next(Runtime& runtime);
};

struct Namespace final : Object {
  Dict values;

  const char* type_name() const override { return "Namespace"; }
  std::string repr(Runtime& runtime, int depth) const override;
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
};

// A global function or a method bound to its object.
struct Function final : Object {
  Function(std::string_view name, Native native, Value self = {})
      : name(name), native(native), self(std::move(self)) {}
  std::string_view name;  // static
  Native native;
  Value self;

  const char* type_name() const override { return "builtin_function_or_method"; }
  std::string repr(Runtime&, int) const override;
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Args& args) override { return native(runtime, self, args); }
};

struct Cycler final : Object {
  explicit Cycler(std::vector<Value> items) : items(std::move(items)) {}
  std::vector<Value> items;
  size_t position = 0;

  const char* type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
};

struct Joiner final : Object {
  explicit Joiner(Value separator) : separator(std::move(separator)) {}
  Value separator;
  bool used = false;

  const char* type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Args& args) override;
};

Value make_generator(Runtime& runtime, std::vector<Value> items);

struct NamedNative {
  std::string_view name;
  Native native;
};

// The method of a str, dict, list, tuple or number; null where it has none or where it would change the
// value.
const NamedNative* find_method(const Value& self, std::string_view name);
// An attribute that Python has here but that the sandbox does not give out or this engine lacks.
bool is_hidden_attribute(const Value& self, std::string_view name);

// By name; null where there is none. What Jinja has and this engine lacks is found and throws when it is
// called.
const NamedNative* find_filter(std::string_view name);
const NamedNative* find_test(std::string_view name);
const NamedNative* find_global(std::string_view name);

// Looks a name up in a table that is sorted by name.
template <size_t n>
const NamedNative* find_native(const NamedNative (&table)[n], std::string_view name) {
  const NamedNative* at =
      std::lower_bound(table, table + n, name,
                       [](const NamedNative& entry, std::string_view key) { return entry.name < key; });
  return at != table + n && at->name == name ? at : nullptr;
}

}  // namespace atom::jinja
