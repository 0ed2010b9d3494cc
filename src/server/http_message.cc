#include "server/http_message.h"

#include <strings.h>

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
    if (key.size() == name.size() && ::strncasecmp(key.data(), name.data(), name.size()) == 0) return value;
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

}  // namespace atom::server
