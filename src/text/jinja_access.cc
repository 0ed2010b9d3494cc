// Iteration, length, attributes, items, slices and calls.
#include <algorithm>

#include <fmt/format.h>

#include "text/jinja_objects.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

constexpr Int kIndexBound = Int{1} << 40;  // beyond every length, so clamping an index keeps its meaning

Value substring(Runtime& runtime, const Str& str, std::string_view part) {
  return runtime.string(std::string(part), str.markup);
}

std::optional<Value> item_of(Runtime& runtime, const Value& object, const Value& key) {
  switch (object.kind()) {
    case Kind::dict: {
      if (!hashable(key)) return {};
      const Value* value = dict_find(runtime, object.as_dict(), key);
      return value == nullptr ? std::nullopt : std::optional<Value>(*value);
    }
    case Kind::object:
      return object.as_object()->item(runtime, key);
    case Kind::string:
    case Kind::list:
      break;
    default:
      return {};
  }
  if (!key.is_integral()) return {};
  const Int length = *length_of(object);
  Int index = key.as_integer();
  if (index < 0) index += length;
  if (index < 0 || index >= length) return {};
  if (object.is_list()) return object.as_list().items[static_cast<size_t>(index)];
  const Str& str = object.as_str();
  if (str.ascii())
    return substring(runtime, str, std::string_view(str.text).substr(static_cast<size_t>(index), 1));
  runtime.charge_scan(str.text.size());
  const size_t at = byte_offset(str.text, static_cast<int64_t>(index));
  size_t end = at;
  next_code_point(str.text, end);
  return substring(runtime, str, std::string_view(str.text).substr(at, end - at));
}

std::string describe(const Value& object) {
  return object.is_none() ? "None" : type_name(object) + " object";
}

Value missing(Runtime& runtime, const Value& object, std::string_view name) {
  return runtime.undefined(fmt::format("'{}' has no attribute '{}'", describe(object), name));
}

// What getattr finds; the sandbox answers an undefined value for what must stay hidden.
std::optional<Value> attribute_of(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is_object()) return object.as_object()->attribute(runtime, name);
  if (object.is_list() && object.as_list().type == List::Type::group) {
    if (name == "grouper") return object.as_list().items[0];
    if (name == "list") return object.as_list().items[1];
  }
  if (const NamedNative* method = find_method(object, name))
    return Value(runtime.make<Function>(method->name, method->native, object));
  if (is_hidden_attribute(object, name))
    return runtime.undefined(
        fmt::format("access to attribute '{}' of '{}' is unsafe or not supported", name, describe(object)));
  return {};
}

}  // namespace

std::shared_ptr<const List> items_of(Runtime& runtime, const Value& value) {
  switch (value.kind()) {
    case Kind::list:
      return value.list_ref();
    case Kind::undefined:
      return runtime.list({}).list_ref();
    case Kind::dict: {
      std::vector<Value> keys;
      keys.reserve(value.as_dict().items.size());
      for (const auto& [key, item] : value.as_dict().items) keys.push_back(key);
      return runtime.list(std::move(keys)).list_ref();
    }
    case Kind::string: {
      const Str& str = value.as_str();
      runtime.charge(str.length);
      std::vector<Value> characters;
      characters.reserve(static_cast<size_t>(str.length));
      for (size_t at = 0; at < str.text.size();) {
        const size_t start = at;
        next_code_point(str.text, at);
        characters.push_back(substring(runtime, str, std::string_view(str.text).substr(start, at - start)));
      }
      return runtime.list(std::move(characters)).list_ref();
    }
    case Kind::object:
      if (auto list = value.as_object()->iterate(runtime)) return list;
      break;
    default:
      break;
  }
  fail("'{}' object is not iterable", type_name(value));
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::list:
    case Kind::undefined:
    case Kind::dict:
    case Kind::string:
      return true;
    case Kind::object:
      return value.as_object()->iterable();
    default:
      return false;
  }
}

std::optional<int64_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::string:
      return value.as_str().length;
    case Kind::list:
      return static_cast<int64_t>(value.as_list().items.size());
    case Kind::dict:
      return static_cast<int64_t>(value.as_dict().items.size());
    case Kind::undefined:
      return 0;
    case Kind::object:
      return value.as_object()->length();
    default:
      return {};
  }
}

bool hashable(const Value& value) {
  if (value.is_dict()) return false;
  if (!value.is_list()) return true;
  const List& list = value.as_list();
  return list.type != List::Type::list && std::all_of(list.items.begin(), list.items.end(), hashable);
}

const Value* dict_find(Runtime& runtime, const Dict& dict, const Value& key) {
  runtime.charge(1 + static_cast<int64_t>(dict.items.size() / 8));
  if (key.is_string()) return dict.find(key.text());
  for (const auto& [name, value] : dict.items)
    if (!name.is_string() && (name.same(key) || equals(runtime, name, key))) return &value;
  return nullptr;
}

void dict_set(Runtime& runtime, Dict& dict, const Value& key, Value value) {
  if (!hashable(key)) fail("unhashable type: '{}'", type_name(key));
  const Value* place = dict_find(runtime, dict, key);
  if (place == nullptr) {
    dict.items.emplace_back(key, std::move(value));
    return;
  }
  for (auto& item : dict.items)
    if (&item.second == place) item.second = std::move(value);
}

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  require_defined(object);
  if (auto value = attribute_of(runtime, object, name)) return *std::move(value);
  if (object.is_dict()) {
    runtime.charge(1 + static_cast<int64_t>(object.as_dict().items.size() / 8));
    if (const Value* value = object.as_dict().find(name)) return *value;
  }
  return missing(runtime, object, name);
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  require_defined(object);
  if (auto value = item_of(runtime, object, key)) return *std::move(value);
  if (!key.is_string()) {
    if (key.is_undefined())
      return runtime.undefined(fmt::format("{} has no element Undefined", describe(object)));
    return runtime.undefined(fmt::format("{} has no element {}", describe(object), to_repr(runtime, key)));
  }
  if (auto value = attribute_of(runtime, object, key.text())) return *std::move(value);
  return missing(runtime, object, key.text());
}

SliceRange resolve_slice(int64_t length, const Value& start, const Value& stop, const Value& step) {
  const auto number = [](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    if (!value.is_integral()) fail("slice indices must be integers or none, not {}", type_name(value));
    return static_cast<int64_t>(std::clamp(value.as_integer(), -kIndexBound, kIndexBound));
  };
  const int64_t by = number(step, 1);
  if (by == 0) fail("slice step cannot be zero");
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? length : length - 1;
  const auto place = [&](const Value& value, int64_t otherwise) {
    int64_t index = number(value, otherwise);
    if (value.is_none()) return otherwise;
    if (index < 0) index += length;
    return std::clamp(index, low, high);
  };
  const int64_t from = place(start, by > 0 ? low : high), to = place(stop, by > 0 ? high : low);
  const int64_t span = by > 0 ? to - from : from - to, stride = by > 0 ? by : -by;
  return {from, to, by, span > 0 ? (span + stride - 1) / stride : 0};
}

Value get_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
                const Value& step) {
  require_defined(object);
  if (const auto* range = object.as<Range>()) {
    const SliceRange slice = resolve_slice(range->count, start, stop, step);
    const auto at = [&](int64_t index) { return range->start + range->step * index; };
    return Value(runtime.make<Range>(at(slice.start), at(slice.stop), range->step * slice.step, slice.count));
  }
  if (object.is_list()) {
    const auto& items = object.as_list().items;
    const SliceRange slice = resolve_slice(static_cast<int64_t>(items.size()), start, stop, step);
    runtime.charge(slice.count);
    std::vector<Value> result;
    result.reserve(static_cast<size_t>(slice.count));
    for (int64_t i = 0; i < slice.count; ++i)
      result.push_back(items[static_cast<size_t>(slice.start + i * slice.step)]);
    return object.as_list().type == List::Type::list ? runtime.list(std::move(result))
                                                     : runtime.tuple(std::move(result));
  }
  if (!object.is_string()) fail("'{}' object cannot be sliced", type_name(object));
  const Str& str = object.as_str();
  const std::string_view text = str.text;
  const SliceRange slice = resolve_slice(str.length, start, stop, step);
  runtime.charge_scan(text.size());
  if (slice.step == 1 || slice.count == 0) {
    const size_t from = str.ascii() ? static_cast<size_t>(slice.start) : byte_offset(text, slice.start);
    const std::string_view tail = text.substr(from);
    return substring(
        runtime, str,
        tail.substr(0, str.ascii() ? static_cast<size_t>(slice.count) : byte_offset(tail, slice.count)));
  }
  runtime.charge(slice.count / 8);
  const std::u32string points = decode(text);
  std::string out;
  for (int64_t i = 0; i < slice.count; ++i)
    append_code_point(out, points[static_cast<size_t>(slice.start + i * slice.step)]);
  return runtime.string(std::move(out), str.markup);
}

Value call(Runtime& runtime, const Value& callee, const Args& args) {
  require_defined(callee);
  if (!callee.is_object() || !callee.as_object()->callable())
    fail("'{}' object is not callable", type_name(callee));
  return callee.as_object()->call(runtime, args);
}

}  // namespace atom::jinja
