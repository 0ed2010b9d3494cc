// The accept loop and one coroutine per connection.
#include "server/http_server.h"

#include <fmt/format.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace atom::server {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using std::chrono::microseconds;
using std::chrono::seconds;

// Connections refer to it: it outlives them, for destroying its context destroys them.
struct HttpServer::State {
  State(const HttpLimits& l, HttpHandler& h, int thread_count)
      : limits(l), handler(h), context(thread_count), acceptor(context) {}

  const HttpLimits limits;
  HttpHandler& handler;
  std::atomic<int64_t> connections{0};
  std::atomic<bool> closing{false};
  asio::io_context context;
  tcp::acceptor acceptor;
  std::vector<std::thread> threads;
};

namespace {

constexpr size_t kMaxDrained = 64 << 20;     // of a body that is refused, read and thrown away
constexpr size_t kMaxReadAhead = 128 << 10;  // of what follows a request's headers, before it is understood

asio::redirect_error_t<asio::use_awaitable_t<>> noting(error_code& ec) {
  return asio::redirect_error(asio::use_awaitable, ec);
}

// What wakes a connection that waits for its exchange. Touched on the connection's strand only.
struct Waker {
  explicit Waker(const asio::any_io_executor& executor) : timer(executor) {}
  asio::steady_timer timer;
  bool signalled = false;
  bool client_gone = false;
  bool over = false;  // the exchange has ended: nobody may look at the connection any more

  void signal() {
    signalled = true;
    timer.cancel();
  }
};

// "HTTP/1.1 200 OK" and headers, up to and with the empty line.
std::string head_text(const ReplyHead& head, bool http11, bool keep_alive, std::optional<size_t> length) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", head.status,
                                 reason_phrase(head.status), head.content_type);
  for (const auto& [name, value] : head.headers)
    fmt::format_to(std::back_inserter(text), "{}: {}\r\n", name, value);
  if (length) {
    fmt::format_to(std::back_inserter(text), "Content-Length: {}\r\n", *length);
  } else if (http11) {
    text += "Transfer-Encoding: chunked\r\n";
  }
  text += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return text;
}

class Connection {
 public:
  Connection(HttpServer::State& state, tcp::socket socket)
      : state_(state),
        stream_(std::move(socket)),
        buffer_(static_cast<size_t>(state.limits.max_header_bytes) + kMaxReadAhead) {
    ++state_.connections;
  }
  ~Connection() { --state_.connections; }
  Connection(const Connection&) = delete;

  asio::awaitable<void> run() {
    error_code ec;
    stream_.socket().set_option(tcp::no_delay(true), ec);
    const tcp::endpoint peer = stream_.socket().remote_endpoint(ec);
    if (ec) co_return;
    client_ = peer.address().to_string();
    if (state_.connections > limits().max_connections) {
      co_await answer(exchange_of(state_.handler.error_reply(503, "too many connections")), {});
      co_await drain();
      co_return;
    }
    // While the server drains, each connection still has one: it is told so.
    while (co_await one_request() && !state_.closing) {
    }
    stream_.socket().shutdown(tcp::socket::shutdown_both, ec);
  }

 private:
  struct Form {
    bool http11 = true, keep_alive = false, head_only = false;
  };

  const HttpLimits& limits() const { return state_.limits; }

  // Reads a request and answers it. False: the connection is to be closed.
  asio::awaitable<bool> one_request() {
    error_code ec;
    if (buffer_.size() == 0) {  // idle until the first byte
      stream_.expires_after(seconds(limits().keep_alive_seconds));
      const size_t n = co_await stream_.async_read_some(buffer_.prepare(4096), noting(ec));
      if (ec) co_return false;
      buffer_.commit(n);
    }
    http::request_parser<http::string_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(limits().max_header_bytes));
    parser.body_limit(static_cast<std::uint64_t>(limits().max_body_bytes));
    stream_.expires_after(seconds(limits().header_seconds));
    co_await http::async_read_header(stream_, buffer_, parser, noting(ec));
    if (ec) co_return co_await refuse(ec);

    HttpRequest request = request_of(parser.get());
    Form form{.http11 = parser.get().version() >= 11,
              .keep_alive = parser.get().keep_alive(),
              .head_only = request.method == "HEAD"};
    if (static_cast<int64_t>(request.headers.size()) > limits().max_headers) {
      co_return co_await refuse(431, "the request has too many headers");
    }
    // Where a body in another coding ends, a proxy may see otherwise: it must not become the next request.
    if (const auto codings = parser.get().count(http::field::transfer_encoding);
        codings > 1 ||
        (codings == 1 && !beast::iequals(parser.get()[http::field::transfer_encoding], "chunked"))) {
      co_return co_await refuse(400, "Transfer-Encoding: only chunked is understood");
    }
    if (std::optional<Reply> refusal = state_.handler.refuse_early(request)) {
      if (parser.is_done()) co_return co_await answer(exchange_of(std::move(*refusal)), form);
      form.keep_alive = false;  // the body has not been read
      co_await answer(exchange_of(std::move(*refusal)), form);
      co_await drain();
      co_return false;
    }
    if (!parser.is_done()) {
      if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
        const std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
        stream_.expires_after(seconds(limits().write_seconds));
        co_await asio::async_write(stream_, asio::buffer(go_on), noting(ec));
        if (ec) co_return false;
      }
      stream_.expires_after(seconds(limits().body_seconds));
      co_await http::async_read(stream_, buffer_, parser, noting(ec));
      if (ec) co_return co_await refuse(ec);
    }
    request.body = std::move(parser.get().body());
    co_return co_await answer(state_.handler.handle(std::move(request)), form);
  }

  HttpRequest request_of(const http::request<http::string_body>& message) const {
    HttpRequest request;
    const auto text = [](auto view) { return std::string(view.data(), view.size()); };
    request.method = text(message.method_string());
    const std::string target = origin_form(text(message.target()));
    const size_t mark = std::min(target.find('?'), target.size());
    request.path = target.substr(0, mark);
    if (mark < target.size()) request.query = target.substr(mark + 1);
    for (const auto& field : message)
      request.headers.emplace_back(text(field.name_string()), text(field.value()));
    request.client = client_;
    return request;
  }

  // Answers what could not be read, where an answer is of use.
  asio::awaitable<bool> refuse(error_code ec) {
    if (ec == http::error::body_limit) {
      co_return co_await refuse(413,
                                fmt::format("the body is larger than {} bytes", limits().max_body_bytes));
    }
    if (ec == http::error::header_limit) {
      co_return co_await refuse(
          431, fmt::format("the headers are larger than {} bytes", limits().max_header_bytes));
    }
    if (ec == http::error::buffer_overflow) {
      co_return co_await refuse(400, "the extension of a chunk or the trailer is too large");
    }
    if (ec == beast::error::timeout) co_return false;  // the socket has been closed
    if (ec.category() == http::make_error_code(http::error::bad_method).category() &&
        ec != http::error::end_of_stream && ec != http::error::partial_message) {
      co_return co_await refuse(400, fmt::format("not a valid HTTP request: {}", ec.message()));
    }
    co_return false;
  }
  asio::awaitable<bool> refuse(int status, std::string message) {
    co_await answer(exchange_of(state_.handler.error_reply(status, message)), {});
    co_await drain();
    co_return false;
  }

  // Closes our side and reads what the client still sends, so that it sees the answer and not a reset.
  asio::awaitable<void> drain() {
    error_code ec;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ec);
    stream_.expires_after(seconds(2));
    std::vector<char> waste(1 << 16);
    for (size_t drained = 0; !ec && drained < kMaxDrained;) {
      drained += co_await stream_.async_read_some(asio::buffer(waste), noting(ec));
    }
  }

  asio::awaitable<bool> write(std::string_view bytes) {
    error_code ec;
    while (!ec && !bytes.empty()) {
      stream_.expires_after(seconds(limits().write_seconds));
      bytes.remove_prefix(
          co_await stream_.async_write_some(asio::buffer(bytes.data(), bytes.size()), noting(ec)));
    }
    co_return !ec;
  }

  // Watches for the client's leaving while nothing is read. What it sends meanwhile (the next request) is
  // kept, as far as there is room for it.
  void watch(const std::shared_ptr<Waker>& waker) {
    stream_.socket().async_wait(tcp::socket::wait_read, [this, waker](error_code ec) {
      if (ec || waker->over) return;  // `this` may be gone
      const size_t room = std::min<size_t>(buffer_.max_size() - buffer_.size(), 4096);
      if (room == 0) return;
      const ssize_t n =
          ::recv(stream_.socket().native_handle(), buffer_.prepare(room).data(), room, MSG_DONTWAIT);
      if (n > 0) buffer_.commit(static_cast<size_t>(n));
      if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))) return watch(waker);
      waker->client_gone = true;
      waker->signal();
    });
  }

  // Sends an exchange's answer. False: the connection is to be closed.
  asio::awaitable<bool> answer(std::unique_ptr<Exchange> exchange, Form form) {
    const asio::any_io_executor executor = stream_.get_executor();
    const auto waker = std::make_shared<Waker>(executor);
    exchange->start([executor, weak = std::weak_ptr<Waker>(waker)] {
      asio::post(executor, [weak] {
        if (const auto waker = weak.lock()) waker->signal();
      });
    });
    bool ok = true, watching = false, head_sent = false, chunked = false;
    for (bool done = false; ok && !done;) {
      Exchange::Output output;
      waker->signalled = false;
      exchange->poll(output);
      done = output.done;
      std::string bytes;
      if (output.head) {
        const bool whole = !output.head->streamed;
        chunked = !whole && form.http11;
        form.keep_alive = form.keep_alive && (whole || form.http11) && !state_.closing;
        bytes = head_text(*output.head, form.http11, form.keep_alive,
                          whole ? std::optional(output.bytes.size()) : std::nullopt);
        head_sent = true;
      }
      if (!form.head_only && !output.bytes.empty()) {
        if (chunked) fmt::format_to(std::back_inserter(bytes), "{:x}\r\n", output.bytes.size());
        bytes += output.bytes;
        if (chunked) bytes += "\r\n";
      }
      if (done && chunked && !form.head_only) bytes += "0\r\n\r\n";
      if (!bytes.empty()) ok = co_await write(bytes);
      if (done || !ok) break;
      if (!watching) {
        watch(waker);
        watching = true;
      }
      if (!waker->signalled) {
        error_code ec;
        stream_.expires_never();
        waker->timer.expires_after(microseconds(output.poll_again_us));
        co_await waker->timer.async_wait(noting(ec));
      }
      ok = !waker->client_gone;
    }
    waker->over = true;
    error_code ec;
    if (watching) stream_.socket().cancel(ec);
    co_return ok&& head_sent&& form.keep_alive;
  }

  HttpServer::State& state_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::string client_;
};

asio::awaitable<void> serve(std::shared_ptr<Connection> connection) {
  try {
    co_await connection->run();
  } catch (const std::exception& e) {
    log_error("a connection ended with an exception: {}", e.what());
  }
}

asio::awaitable<void> accept_loop(HttpServer::State& state) {
  asio::steady_timer pause(state.context);
  for (;;) {
    error_code ec;
    tcp::socket socket = co_await state.acceptor.async_accept(asio::make_strand(state.context), noting(ec));
    if (ec == asio::error::operation_aborted) co_return;
    if (ec) {  // out of descriptors, for example: others may close theirs
      log_warning("a connection could not be accepted: {}", ec.message());
      pause.expires_after(std::chrono::milliseconds(100));
      co_await pause.async_wait(noting(ec));
      continue;
    }
    const asio::any_io_executor executor = socket.get_executor();
    asio::co_spawn(executor, serve(std::make_shared<Connection>(state, std::move(socket))), asio::detached);
  }
}

}  // namespace

HttpServer::HttpServer(const std::string& host, int port, int threads, const HttpLimits& limits,
                       HttpHandler& handler)
    : state_(std::make_unique<State>(limits, handler, threads)) {
  error_code ec;
  tcp::resolver resolver(state_->context);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, ec);
  if (ec || found.empty()) throw invalid("--host {}: {}", host, ec ? ec.message() : "no such address");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor& acceptor = state_->acceptor;
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(4096, ec);
  if (ec) {
    throw failed("cannot listen on {} port {}: {}; is another server running there? Choose another --port",
                 host, port, ec.message());
  }
  asio::co_spawn(state_->context, accept_loop(*state_), asio::detached);
  for (int i = 0; i < threads; ++i) {
    state_->threads.emplace_back([state = state_.get()] {
      ::pthread_setname_np(::pthread_self(), "atom-http");
      state->context.run();
    });
  }
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::stop() {
  if (state_ == nullptr) return;
  state_->context.stop();
  for (std::thread& thread : state_->threads) thread.join();
  state_.reset();
}

int HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }
int64_t HttpServer::connections() const { return state_->connections; }
void HttpServer::close_after_answers() { state_->closing = true; }

}  // namespace atom::server
