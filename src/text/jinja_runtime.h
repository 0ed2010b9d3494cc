// One render's memory and patience: the arena of its objects, and the budgets that stop hostile templates.
#pragma once
#include <ctime>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/jinja_value.h"

namespace atom::jinja {

// A template that is wrong or that refuses its input. `raised`: the template itself called raise_exception,
// and the message is exactly what it said.
class TemplateError : public Error {
 public:
  TemplateError(std::string message, bool raised)
      : Error(Errc::invalid, std::move(message)), raised_(raised) {}
  bool raised() const { return raised_; }

 private:
  bool raised_;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError(fmt::format(format, std::forward<Args>(args)...), false);
}

// Refuses to go deeper than a fixed number of bytes of stack below the place where it was made.
class StackGuard {
 public:
  StackGuard() : base_(static_cast<const char*>(__builtin_frame_address(0))) {}
  bool exhausted() const { return base_ - static_cast<const char*>(__builtin_frame_address(0)) > kMaxBytes; }

 private:
  static constexpr ptrdiff_t kMaxBytes = 224 << 10;  // a thread of 512 KiB has room for this and a caller
  const char* base_;
};

struct Limits {
  int64_t steps = 20'000'000;          // nodes evaluated, elements visited, and text scanned by 64 bytes
  int64_t bytes = int64_t{256} << 20;  // of all strings and containers made
};
inline constexpr int64_t kMaxStringBytes = int64_t{64} << 20;  // also of the output
inline constexpr int kMaxContainerDepth = 200;
inline constexpr int64_t kMaxRange = 100'000;  // elements, as in Jinja's sandbox

class Runtime {
 public:
  explicit Runtime(const Limits& limits, std::optional<std::tm> now = {}) : limits_(limits), now_(now) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Each throws when its budget is spent.
  void charge(int64_t steps) {
    if ((limits_.steps -= steps) < 0) fail("the template runs too long");
  }
  void charge_scan(size_t bytes) { charge(1 + static_cast<int64_t>(bytes / 64)); }
  void charge_bytes(int64_t bytes) {
    if ((limits_.bytes -= bytes) < 0) fail("the template needs too much memory");
  }
  void check_stack() const {
    if (guard_.exhausted()) fail("the template recurses too deeply (a macro that calls itself without end?)");
  }
  // Before a string of that many bytes is made.
  static void check_size(int64_t bytes) {
    if (bytes > kMaxStringBytes) fail("the template makes a string of more than 64 MiB");
  }

  Value string(std::string text, bool markup = false);
  Value list(std::vector<Value> items, List::Type type = List::Type::list);
  Value tuple(std::vector<Value> items) { return list(std::move(items), List::Type::tuple); }
  Value dict(Dict dict);  // keys must be distinct
  Value undefined(std::string message);

  // A new object that lives until the render ends.
  template <class T, class... A>
  T* make(A&&... args) {
    charge_bytes(sizeof(T) + 64);
    auto object = std::make_unique<T>(std::forward<A>(args)...);
    T* result = object.get();
    objects_.push_back(std::move(object));
    return result;
  }

  // Local civil time for strftime_now: what the caller gave, else the clock.
  std::tm now() const;

 private:
  Limits limits_;
  std::optional<std::tm> now_;
  StackGuard guard_;
  std::deque<Undefined> undefined_;
  std::deque<std::unique_ptr<Object>> objects_;
};

// A string that belongs to no render: the constants of a template.
std::shared_ptr<const Str> make_str(std::string text, bool markup = false);

// Binds arguments to parameters as Python does: `names` in order, the first `required` of them without
// default. Missing ones are null. Throws where Python raises TypeError.
using Bound = std::vector<const Value*>;
Bound bind(std::string_view function, const Args& args, std::initializer_list<std::string_view> names,
           size_t required);

// Arguments as a bounded C++ value; null gives the default. `what` names the argument in errors.
int64_t int_argument(const Value* value, int64_t otherwise, std::string_view what);
bool bool_argument(const Value* value, bool otherwise);

}  // namespace atom::jinja
