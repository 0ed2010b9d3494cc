// Making values within the render's budgets, and binding arguments.
#include "text/jinja_runtime.h"

#include <algorithm>

#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

int depth_of(const Value& value) {
  switch (value.kind()) {
    case Kind::list:
      return value.as_list().depth;
    case Kind::dict:
      return value.as_dict().depth;
    case Kind::object:
      return value.as_object()->depth();
    default:
      return 0;
  }
}

int checked_depth(int deepest_child) {
  if (deepest_child >= kMaxContainerDepth)
    fail("lists and dicts are nested more than {} deep", kMaxContainerDepth);
  return deepest_child + 1;
}

}  // namespace

std::shared_ptr<const Str> make_str(std::string text, bool markup) {
  auto str = std::make_shared<Str>();
  str->length = count_code_points(text);
  str->text = std::move(text);
  str->markup = markup;
  return str;
}

Value Runtime::string(std::string text, bool markup) {
  check_size(static_cast<int64_t>(text.size()));
  charge_bytes(static_cast<int64_t>(text.size()) + 64);
  return Value(make_str(std::move(text), markup));
}

Value Runtime::list(std::vector<Value> items, List::Type type) {
  charge_bytes(static_cast<int64_t>(items.size() * sizeof(Value)) + 64);
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, depth_of(item));
  auto list = std::make_shared<List>();
  list->items = std::move(items);
  list->type = type;
  list->depth = checked_depth(deepest);
  return Value(std::shared_ptr<const List>(std::move(list)));
}

Value Runtime::dict(Dict dict) {
  charge_bytes(static_cast<int64_t>(dict.items.size() * sizeof(dict.items[0])) + 64);
  int deepest = 0;
  for (const auto& [key, value] : dict.items) deepest = std::max({deepest, depth_of(key), depth_of(value)});
  dict.depth = checked_depth(deepest);
  return Value(std::shared_ptr<const Dict>(std::make_shared<Dict>(std::move(dict))));
}

Value Runtime::undefined(std::string message) {
  charge_bytes(static_cast<int64_t>(message.size() + sizeof(Undefined)));
  return Value(&undefined_.emplace_back(Undefined{std::move(message)}));
}

std::tm Runtime::now() const {
  std::tm result{};
  if (now_) {
    result = *now_;
    std::tm copy = result;
    timegm(&copy);  // fills in the day of the week and of the year
    result.tm_wday = copy.tm_wday;
    result.tm_yday = copy.tm_yday;
  } else {
    const std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &result);
  }
  return result;
}

Bound bind(std::string_view function, const Args& args, std::initializer_list<std::string_view> names,
           size_t required) {
  Bound bound(names.size(), nullptr);
  if (args.positional.size() > names.size())
    fail("{}() takes at most {} argument(s), got {}", function, names.size(), args.positional.size());
  for (size_t i = 0; i < args.positional.size(); ++i) bound[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end()) fail("{}() has no argument named '{}'", function, name);
    const Value*& slot = bound[static_cast<size_t>(place - names.begin())];
    if (slot != nullptr) fail("{}() got the argument '{}' twice", function, name);
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (bound[i] == nullptr) fail("{}() lacks its argument '{}'", function, *(names.begin() + i));
  return bound;
}

int64_t int_argument(const Value* value, int64_t otherwise, std::string_view what) {
  if (value == nullptr) return otherwise;
  require_defined(*value);
  if (!value->is_integral()) fail("{} must be an integer, not {}", what, type_name(*value));
  const Int number = value->as_integer();
  // Every length is far smaller than this, so clamping keeps the meaning.
  constexpr Int kBound = Int{1} << 40;
  return static_cast<int64_t>(std::clamp(number, -kBound, kBound));
}

bool bool_argument(const Value* value, bool otherwise) {
  return value == nullptr ? otherwise : truthy(*value);
}

}  // namespace atom::jinja
