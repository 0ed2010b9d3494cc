// Behaviour of the objects that builtins make.
#include "text/jinja_objects.h"

#include <fmt/format.h>

namespace atom::jinja {

std::string Range::repr(Runtime&, int) const {
  const std::string tail = step == 1 ? "" : ", " + int_to_str(step);
  return fmt::format("range({}, {}{})", int_to_str(start), int_to_str(stop), tail);
}

std::optional<Value> Range::item(Runtime&, const Value& key) {
  if (!key.is_integral()) return {};
  Int index = key.as_integer();
  if (index < 0) index += count;
  if (index < 0 || index >= count) return {};
  return Value::integer(start + step * index);
}

std::shared_ptr<const List> Range::iterate(Runtime& runtime) {
  runtime.charge(count);
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) items.push_back(Value::integer(start + step * i));
  return runtime.list(std::move(items)).list_ref();
}

bool Range::equals(const Range& other) const {
  if (count != other.count) return false;
  return count == 0 || (start == other.start && (count == 1 || step == other.step));
}

std::string View::repr(Runtime& runtime, int depth) const {
  return fmt::format("{}({})", type, to_repr(runtime, Value(list), depth));
}

std::shared_ptr<const List> Generator::iterate(Runtime& runtime) {
  if (!list) return runtime.list({}).list_ref();
  return std::exchange(list, nullptr);
}

std::optional<Value> Generator::next(Runtime& runtime) {
  if (!list || list->items.empty()) return {};
  Value first = list->items.front();
  runtime.charge(static_cast<int64_t>(list->items.size()));
  list = runtime.list({list->items.begin() + 1, list->items.end()}).list_ref();
  return first;
}

Value make_generator(Runtime& runtime, std::vector<Value> items) {
  return Value(runtime.make<Generator>(runtime.list(std::move(items)).list_ref()));
}

std::string Namespace::repr(Runtime& runtime, int depth) const {
  runtime.check_stack();
  std::string out = "<Namespace {";
  for (const auto& [key, value] : values.items) {
    if (out.back() != '{') out += ", ";
    out += to_repr(runtime, key, depth + 1) + ": " + to_repr(runtime, value, depth + 1);
    Runtime::check_size(static_cast<int64_t>(out.size()));
  }
  return out + "}>";
}

std::optional<Value> Namespace::attribute(Runtime&, std::string_view name) {
  const Value* value = values.find(name);
  return value == nullptr ? std::nullopt : std::optional<Value>(*value);
}

std::string Function::repr(Runtime&, int) const { return fmt::format("<built-in function {}>", name); }

namespace {

Cycler& cycler_of(const Value& self) { return *self.as<Cycler>(); }

Value cycler_next(Runtime&, const Value& self, const Args& args) {
  bind("next", args, {}, 0);
  Cycler& cycler = cycler_of(self);
  const Value current = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return current;
}

Value cycler_reset(Runtime&, const Value& self, const Args& args) {
  bind("reset", args, {}, 0);
  cycler_of(self).position = 0;
  return {};
}

}  // namespace

std::optional<Value> Cycler::attribute(Runtime& runtime, std::string_view name) {
  if (name == "current") return items[position];
  if (name == "next") return Value(runtime.make<Function>("next", cycler_next, Value(this)));
  if (name == "reset") return Value(runtime.make<Function>("reset", cycler_reset, Value(this)));
  return {};
}

Value Joiner::call(Runtime& runtime, const Args& args) {
  bind("joiner", args, {}, 0);
  if (std::exchange(used, true)) return separator;
  return runtime.string("");
}

}  // namespace atom::jinja
