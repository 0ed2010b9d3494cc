// Log lines on stderr, one per event. Library code never prints to stdout.
#pragma once
#include <fmt/core.h>

#include <string_view>

namespace atom {

enum class LogLevel { debug, info, warning, error, off };

void set_log_level(LogLevel level);  // the default is warning; the ATOM_LOG environment variable overrides
void log_line(LogLevel level, std::string_view message);
bool log_enabled(LogLevel level);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::debug))
    log_line(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::info)) log_line(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace atom
