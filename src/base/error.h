// Expected failures. `Error` is thrown for a bad file, config or flag before serving and caught once, in
// cli/main.cc; `Result<T>` carries an Error as a value where a failure must not unwind (requests).
#pragma once
#include <fmt/core.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace atom {

enum class Errc {
  invalid,  // the command line, the checkpoint or the request is wrong: exit code 2, or a 4xx answer
  failed,   // the work itself failed: exit code 1, or a 5xx answer
};

// One readable line: what is wrong, where (file, key, tensor), and what to do about it.
class Error : public std::exception {
 public:
  Error(Errc code, std::string message) : code_(code), message_(std::move(message)) {}
  Errc code() const { return code_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Errc code_;
  std::string message_;
};

template <class... Args>
Error invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Error(Errc::invalid, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
Error failed(fmt::format_string<Args...> format, Args&&... args) {
  return Error(Errc::failed, fmt::format(format, std::forward<Args>(args)...));
}

// A value or an Error.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    CHECK(ok(), "{}", std::get<1>(state_).message());
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(ok(), "{}", std::get<1>(state_).message());
    return std::get<0>(state_);
  }
  T&& value() && { return std::move(value()); }
  const Error& error() const {
    CHECK(!ok());
    return std::get<1>(state_);
  }
  // The value, or throw the error: for callers that are allowed to unwind.
  T take() && {
    if (!ok()) throw std::get<1>(std::move(state_));
    return std::get<0>(std::move(state_));
  }

 private:
  std::variant<T, Error> state_;
};

}  // namespace atom
