#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

namespace atom {
namespace {

spdlog::level::level_enum spd_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

spdlog::logger& logger() {
  static const auto instance = [] {
    auto log =
        std::make_shared<spdlog::logger>("atom", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    log->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    log->set_level(spdlog::level::warn);
    if (const char* level = std::getenv("ATOM_LOG")) log->set_level(spdlog::level::from_str(level));
    return log;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  if (std::getenv("ATOM_LOG") == nullptr) logger().set_level(spd_level(level));
}
void log_line(LogLevel level, std::string_view message) { logger().log(spd_level(level), message); }
bool log_enabled(LogLevel level) { return logger().should_log(spd_level(level)); }

}  // namespace atom
