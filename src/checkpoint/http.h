// HttpClient: the few HTTP requests a download needs, over libcurl. Redirects are followed here, so that the
// access token never leaves its host.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace atom {

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names, of the last hop
  std::string body;                            // get() only
  std::string url;                             // of the last hop

  std::string header(std::string_view name) const;  // "" when absent
};

// A connection or server that may work a little later.
struct TransientError : Error {
  using Error::Error;
  int64_t wait_us = 0;  // what the server asked for; 0 when nothing
};

// One connection; use one client per thread.
class HttpClient {
 public:
  // `token` goes to requests whose scheme, host and port are those of `origin`, and to no other.
  HttpClient(std::string_view origin, std::optional<std::string> token);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Replies with any status are returned. Throws TransientError for broken connections and for the statuses
  // 408, 429 and 5xx, Error (failed) for what a repetition cannot heal.
  HttpReply get(const std::string& url, int64_t max_body_bytes);
  // Stops at a redirect that `stop` accepts, and returns it.
  HttpReply head(const std::string& url, const std::function<bool(const HttpReply&)>& stop);
  // Streams the body of a 200 or 206 reply: `start` sees the reply's status and headers before the first
  // byte; `data` takes the bytes. Either returns false to end the transfer (then status is as received).
  HttpReply stream(const std::string& url, int64_t range_begin,
                   const std::function<bool(const HttpReply&)>& start,
                   const std::function<bool(std::string_view)>& data);

 private:
  struct Transfer;
  void perform(Transfer& transfer);
  HttpReply follow(Transfer& transfer);

  void* handle_;
  std::string origin_;
  std::optional<std::string> token_;
};

// Percent-encodes all but unreserved characters; `keep` are left too.
std::string url_escape(std::string_view text, std::string_view keep = {});

}  // namespace atom
