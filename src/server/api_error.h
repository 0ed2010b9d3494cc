// ApiError: what a client is told when its request is not served. Thrown while a request is parsed and caught
// in one place, the service's router; it never passes through the engine.
#pragma once
#include <fmt/core.h>

#include <exception>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace atom::server {

struct ApiError : std::exception {
  ApiError(int status, std::string code, std::string message, std::string param = {})
      : status(status), code(std::move(code)), message(std::move(message)), param(std::move(param)) {}
  const char* what() const noexcept override { return message.c_str(); }

  int status;
  std::string code;     // stable, for programs: "context_length_exceeded"
  std::string message;  // for people
  std::string param;    // the field at fault, or ""

  // OpenAI's error type of the status, such as "invalid_request_error".
  std::string type() const;
  // {"error": {message, type, param, code}}
  Json openai_body() const;
  // {"type": "error", "error": {type, message}}
  Json anthropic_body() const;
};

// A 400 about one field; the message begins with the field.
template <class... Args>
ApiError bad_field(const std::string& field, fmt::format_string<Args...> format, Args&&... args) {
  return ApiError(400, "invalid_value", field + ": " + fmt::format(format, std::forward<Args>(args)...),
                  field);
}

// An error of the engine or of the text layer: invalid is the client's (400), failed is ours (500).
ApiError from_error(const Error& error);

}  // namespace atom::server
