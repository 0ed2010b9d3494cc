// Programmer errors: CHECK prints the condition, its values and the place, then aborts. Always on.
#pragma once
#include <fmt/core.h>

#include <string>
#include <string_view>

namespace atom {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message);

namespace detail {
inline std::string check_message() { return {}; }
template <class... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace detail
}  // namespace atom

// CHECK(condition) or CHECK(condition, "format {}", values...).
#define CHECK(condition, ...)                                                                           \
  do {                                                                                                  \
    if (!(condition)) [[unlikely]]                                                                      \
      ::atom::check_failed(__FILE__, __LINE__, #condition, ::atom::detail::check_message(__VA_ARGS__)); \
  } while (0)

#ifdef NDEBUG
#define DCHECK(condition, ...) \
  do {                         \
  } while (0)
#else
#define DCHECK(condition, ...) CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
