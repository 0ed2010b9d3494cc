// The values of templates: Python's none, bool, int, float, str, list, tuple and dict, Jinja's undefined, and
// objects with identity (namespaces, macros, loops). Data is immutable and shared; objects live in the
// render's arena.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace atom::jinja {

class Runtime;
class Value;
struct Args;
struct List;
struct Dict;

// Python's int, as far as 128 bits hold it; arithmetic beyond is an error.
using Int = __int128;

struct Str {
  std::string text;     // well-formed UTF-8
  int64_t length = 0;   // code points
  bool markup = false;  // the result of |safe or |escape, which adds escaped text only

  bool ascii() const { return length == static_cast<int64_t>(text.size()); }
};

// A value that does not exist, and why.
struct Undefined {
  std::string message;
};

// Something with identity: it owns no other object and dies with the render.
struct Object {
  virtual ~Object() = default;
  virtual const char* type_name() const = 0;
  virtual std::string repr(Runtime& runtime, int depth) const;
  virtual bool truthy() const { return true; }
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& runtime, const Args& args);
  // The attribute, or nothing where there is none.
  virtual std::optional<Value> attribute(Runtime& runtime, std::string_view name);
  virtual std::optional<Value> item(Runtime& runtime, const Value& key);
  virtual std::optional<int64_t> length() const { return {}; }
  // All elements, or null where it cannot be iterated. A generator is empty afterwards.
  virtual std::shared_ptr<const List> iterate(Runtime& runtime);
  virtual bool iterable() const { return false; }
  virtual int depth() const { return 1; }
};

enum class Kind { none, boolean, integer, real, string, list, dict, undefined, object };

class Value {
 public:
  Value() = default;  // none
  static Value boolean(bool value) { return Value(State(value)); }
  static Value integer(Int value) { return Value(State(value)); }
  static Value real(double value) { return Value(State(value)); }
  explicit Value(std::shared_ptr<const Str> value) : state_(std::move(value)) {}
  explicit Value(std::shared_ptr<const List> value) : state_(std::move(value)) {}
  explicit Value(std::shared_ptr<const Dict> value) : state_(std::move(value)) {}
  explicit Value(const Undefined* value) : state_(value) {}
  explicit Value(Object* value) : state_(value) {}

  Kind kind() const { return static_cast<Kind>(state_.index()); }
  bool is_none() const { return kind() == Kind::none; }
  bool is_string() const { return kind() == Kind::string; }
  bool is_list() const { return kind() == Kind::list; }  // or a tuple
  bool is_dict() const { return kind() == Kind::dict; }
  bool is_undefined() const { return kind() == Kind::undefined; }
  bool is_object() const { return kind() == Kind::object; }
  bool is_number() const { return is_integral() || kind() == Kind::real; }
  bool is_integral() const { return kind() == Kind::integer || kind() == Kind::boolean; }  // as in Python

  bool as_boolean() const { return std::get<bool>(state_); }
  Int as_integer() const { return kind() == Kind::boolean ? Int{as_boolean()} : std::get<Int>(state_); }
  double as_real() const {
    return kind() == Kind::real ? std::get<double>(state_) : static_cast<double>(as_integer());
  }
  const Str& as_str() const { return *std::get<std::shared_ptr<const Str>>(state_); }
  const std::string& text() const { return as_str().text; }
  const std::shared_ptr<const List>& list_ref() const {
    return std::get<std::shared_ptr<const List>>(state_);
  }
  const List& as_list() const { return *list_ref(); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(state_); }
  const Undefined& as_undefined() const { return *std::get<const Undefined*>(state_); }
  Object* as_object() const { return std::get<Object*>(state_); }
  template <class T>
  T* as() const {  // the object of that class, or null
    return is_object() ? dynamic_cast<T*>(as_object()) : nullptr;
  }
  // Python's `is`: the same object, or the same none, bool or number.
  bool same(const Value& other) const { return state_ == other.state_; }

 private:
  using State =
      std::variant<std::monostate, bool, Int, double, std::shared_ptr<const Str>, std::shared_ptr<const List>,
                   std::shared_ptr<const Dict>, const Undefined*, Object*>;
  explicit Value(State state) : state_(std::move(state)) {}
  State state_;
};

struct List {
  enum class Type { list, tuple, group };  // group: a tuple whose elements are also .grouper and .list
  std::vector<Value> items;
  Type type = Type::list;
  int depth = 1;  // containers on the deepest way down, itself included
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in insertion order, keys distinct
  int depth = 1;

  const Value* find(std::string_view key) const;
};

// The arguments of a call.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A function, method, filter or test in C++; `self` is what stands before the dot, the pipe or `is`.
using Native = Value (*)(Runtime& runtime, const Value& self, const Args& args);

// "str", "dict", "NoneType": Python's name of the type.
std::string type_name(const Value& value);

}  // namespace atom::jinja
