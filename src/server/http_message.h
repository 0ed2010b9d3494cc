// What the HTTP core hands to the protocols and takes back: plain values, no sockets.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace atom::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // upper case
  std::string path;    // without the query, as sent (no escapes decoded)
  std::string query;
  Headers headers;
  std::string body;
  std::string client;  // address of the peer

  // The first header of this name (any case), or "".
  std::string_view header(std::string_view name) const;
};

struct ReplyHead {
  int status = 200;
  std::string content_type = "application/json";
  Headers headers;
  bool streamed = false;  // the body comes in pieces; otherwise all of it comes with the head
};

// The answer to one request, produced when it is asked for. Every method but `start`'s callback runs on the
// connection's thread. Destroying an exchange that is not done means that the client has gone: whatever it
// has under way must end.
class Exchange {
 public:
  struct Output {
    std::optional<ReplyHead> head;  // once, with or before the first bytes
    std::string bytes;
    bool done = false;
    int64_t poll_again_us = 5'000'000;  // poll after this time even without a wake
  };

  virtual ~Exchange() = default;
  // Called once, before the first poll. `wake` may be called from any thread until the exchange is destroyed.
  virtual void start(std::function<void()> wake) = 0;
  // Appends what can be sent now.
  virtual void poll(Output& output) = 0;
};

// A whole answer that is known at once.
struct Reply {
  ReplyHead head;
  std::string body;
};
std::unique_ptr<Exchange> exchange_of(Reply reply);

// Decides what is answered. Called from every HTTP thread.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called when the headers are there and the body is not: a reply refuses the request before its body is
  // read.
  virtual std::optional<Reply> refuse_early(const HttpRequest& head) = 0;
  virtual std::unique_ptr<Exchange> handle(HttpRequest&& request) = 0;
  // The body of an answer that the HTTP core gives by itself, such as 400 and 413.
  virtual Reply error_reply(int status, const std::string& message) = 0;
};

const char* reason_phrase(int status);

// As the names of HTTP compare, whatever the case.
bool begins_with(std::string_view text, std::string_view prefix);
// The path and the query of a request's target, which may be a whole URL.
std::string origin_form(std::string target);
// With escapes such as %2F decoded; what is none stays.
std::string percent_decoded(std::string_view text);
// "application/json" of "Application/JSON ; charset=utf-8".
std::string media_type(std::string_view content_type);

}  // namespace atom::server
