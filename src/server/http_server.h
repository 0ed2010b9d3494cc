// HttpServer: sockets, HTTP/1.1 and time limits. A few threads serve all connections; what is answered is the
// handler's.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/http_message.h"

namespace atom::server {

struct HttpLimits {
  int64_t max_body_bytes = 8 << 20;
  int64_t max_header_bytes = 32 << 10;
  int64_t max_headers = 100;
  int64_t max_connections = 4096;
  int64_t header_seconds = 10;      // from a request's first byte to the end of its headers
  int64_t body_seconds = 60;        // to read a body
  int64_t keep_alive_seconds = 60;  // that a connection may be idle between requests
  int64_t write_seconds = 30;       // that a client may leave what it is sent unread
};

class HttpServer {
 public:
  // Binds and listens; throws Error (failed) naming the address if that is not possible. `handler` must
  // outlive this object. Port 0 takes any free one.
  HttpServer(const std::string& host, int port, int threads, const HttpLimits& limits, HttpHandler& handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;

  // Ends every connection, destroys its exchange, and joins the threads. Nothing else may be called after it.
  void stop();

  int port() const;
  int64_t connections() const;
  // From now on every answer closes its connection.
  void close_after_answers();

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace atom::server
