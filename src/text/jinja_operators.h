// What Python's operators and built-ins do to values. Each throws TemplateError where Python raises.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_runtime.h"
#include "text/jinja_value.h"

namespace atom::jinja {

// jinja_print.cc
std::string to_str(Runtime& runtime, const Value& value);  // str()
std::string to_repr(Runtime& runtime, const Value& value, int depth = 0);
std::string quote(std::string_view text);  // repr of a str
std::string int_to_str(Int value);
std::string real_to_str(double value);  // 1.0, 1e-07, inf, nan

// jinja_operators.cc
[[noreturn]] void fail_undefined(const Value& value);
inline void require_defined(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
}
bool truthy(const Value& value);
bool equals(Runtime& runtime, const Value& a, const Value& b);
// <0, 0, >0; a pair with NaN is 2. `op` names the operator in the error for what has no order.
int compare(Runtime& runtime, const Value& a, const Value& b, std::string_view op);
bool less(Runtime& runtime, const Value& a, const Value& b);
bool contains(Runtime& runtime, const Value& container, const Value& item);

// jinja_arithmetic.cc
enum class BinaryOp { add, sub, mul, div, floor_div, mod, pow };
Value arithmetic(Runtime& runtime, BinaryOp op, const Value& a, const Value& b);
Value negate(const Value& value);
Value positive(const Value& value);
Int real_to_int(double value);
std::string escape_html(std::string_view text);
std::string escaped(Runtime& runtime, const Value& value);  // str() of it, escaped unless it is markup

// jinja_access.cc
std::shared_ptr<const List> items_of(Runtime& runtime, const Value& value);  // iter()
bool is_iterable(const Value& value);
std::optional<int64_t> length_of(const Value& value);  // len(), nothing where Python raises
bool hashable(const Value& value);
const Value* dict_find(Runtime& runtime, const Dict& dict, const Value& key);
void dict_set(Runtime& runtime, Dict& dict, const Value& key, Value value);
Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);  // object.name
Value get_item(Runtime& runtime, const Value& object, const Value& key);            // object[key]
Value get_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
                const Value& step);
Value call(Runtime& runtime, const Value& callee, const Args& args);
// One resolved slice: `count` elements from `start` by `step`.
struct SliceRange {
  int64_t start, stop, step, count;
};
SliceRange resolve_slice(int64_t length, const Value& start, const Value& stop, const Value& step);

}  // namespace atom::jinja
