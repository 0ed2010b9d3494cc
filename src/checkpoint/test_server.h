// Test helper: an HTTP/1.1 server on 127.0.0.1 that answers with what a function returns. One request per
// connection.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace atom::testing {

struct ServerRequest {
  std::string method, path;
  std::map<std::string, std::string> headers;  // lower-case names
};

struct ServerReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  size_t cut_after = std::string::npos;  // closes the connection after so many bytes of the body
};

class TestServer {
 public:
  using Handler = std::function<ServerReply(const ServerRequest&)>;

  explicit TestServer(Handler handler) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_, 64);
    socklen_t length = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_loop(); });
  }
  ~TestServer() {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    for (std::thread& thread : workers_) thread.join();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<ServerRequest> requests() const {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  void forget_requests() {
    std::lock_guard lock(mutex_);
    requests_.clear();
  }

 private:
  void accept_loop() {
    for (int fd; (fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      workers_.emplace_back([this, fd] { serve(fd); });
    }
  }

  void serve(int fd) {
    std::string text;
    char buffer[4096];
    while (text.find("\r\n\r\n") == std::string::npos) {
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      text.append(buffer, static_cast<size_t>(n));
    }
    const ServerRequest request = parse(text);
    {
      std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const ServerReply reply = handler_(request);
    std::string out = "HTTP/1.1 " + std::to_string(reply.status) + " X\r\nConnection: close\r\n";
    bool has_length = false;
    for (const auto& [name, value] : reply.headers) {
      out += name + ": " + value + "\r\n";
      has_length |= name == "Content-Length";
    }
    if (!has_length) out += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
    out += "\r\n";
    if (request.method != "HEAD") out += reply.body.substr(0, reply.cut_after);
    for (size_t sent = 0; sent < out.size();) {
      const ssize_t n = ::send(fd, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    ::shutdown(fd, SHUT_WR);
    ::close(fd);
  }

  static ServerRequest parse(const std::string& text) {
    ServerRequest request;
    const size_t space = text.find(' ');
    request.method = text.substr(0, space);
    request.path = text.substr(space + 1, text.find(' ', space + 1) - space - 1);
    for (size_t line = text.find("\r\n"); line != std::string::npos; line = text.find("\r\n", line + 2)) {
      const size_t colon = text.find(": ", line);
      const size_t end = text.find("\r\n", line + 2);
      if (colon == std::string::npos || end == std::string::npos || colon > end) break;
      std::string name = text.substr(line + 2, colon - line - 2);
      for (char& c : name) c = static_cast<char>(::tolower(c));
      request.headers[name] = text.substr(colon + 2, end - colon - 2);
    }
    return request;
  }

  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::thread acceptor_;
  std::vector<std::thread> workers_;
  mutable std::mutex mutex_;
  std::vector<ServerRequest> requests_;
};

}  // namespace atom::testing
