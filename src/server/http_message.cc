#include "server/http_message.h"

#include <strings.h>

#include <algorithm>
#include <charconv>

namespace atom::server {
namespace {

class WholeExchange : public Exchange {
 public:
  explicit WholeExchange(Reply reply) : reply_(std::move(reply)) {}
  void start(std::function<void()>) override {}
  void poll(Output& output) override {
    output.head = std::move(reply_.head);
    output.bytes = std::move(reply_.body);
    output.done = true;
  }

 private:
  Reply reply_;
};

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key.size() == name.size() && begins_with(key, name)) return value;
  }
  return {};
}

std::unique_ptr<Exchange> exchange_of(Reply reply) {
  return std::make_unique<WholeExchange>(std::move(reply));
}

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 529:
      return "Overloaded";
    default:
      return "Status";
  }
}

bool begins_with(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() && ::strncasecmp(text.data(), prefix.data(), prefix.size()) == 0;
}

std::string origin_form(std::string target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!begins_with(target, scheme)) continue;
    target.erase(0, std::min(target.find_first_of("/?", scheme.size()), target.size()));
    return target.starts_with('/') ? target : "/" + target;
  }
  return target;
}

std::string percent_decoded(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    uint8_t byte = 0;
    size_t size = 1;
    if (text[0] == '%' && text.size() >= 3 &&
        std::from_chars(text.data() + 1, text.data() + 3, byte, 16).ptr == text.data() + 3) {
      size = 3;
    }
    result += size == 3 ? static_cast<char>(byte) : text[0];
    text.remove_prefix(size);
  }
  return result;
}

std::string media_type(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find_first_of("; \t")));
  std::ranges::transform(type, type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type;
}

}  // namespace atom::server
