#include "server/api_error.h"

namespace atom::server {

std::string ApiError::type() const {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

Json ApiError::openai_body() const {
  return {{"error",
           {{"message", message},
            {"type", type()},
            {"param", param.empty() ? Json(nullptr) : Json(param)},
            {"code", code.empty() ? Json(nullptr) : Json(code)}}}};
}

Json ApiError::anthropic_body() const {
  const std::string kind = status == 413                    ? "request_too_large"
                           : status == 503                  ? "overloaded_error"
                           : status >= 500 && status != 504 ? "api_error"
                                                            : type();
  return {{"type", "error"}, {"error", {{"type", kind}, {"message", message}}}};
}

ApiError from_error(const Error& error) {
  if (error.code() != Errc::invalid) return ApiError(500, "internal_error", error.message());
  // Messages of the layers below open with the field: "temperature: -1 is outside ...".
  const std::string& message = error.message();
  const size_t colon = message.find(": ");
  std::string param;
  if (colon != std::string::npos && message.find(' ') > colon) param = message.substr(0, colon);
  return ApiError(400, "invalid_value", message, param);
}

}  // namespace atom::server
