#include "checkpoint/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <mutex>

namespace atom {
namespace {

constexpr int kMaxHops = 8;
constexpr size_t kMaxHeaders = 256;
constexpr long kConnectSeconds = 15;
constexpr long kStallSeconds = 30;  // without a byte

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

struct UrlParts {
  std::string scheme, host, port;
  std::string origin() const { return scheme + "://" + host + ":" + port; }
};

UrlParts split_url(const std::string& url) {
  UrlParts parts;
  CURLU* parsed = curl_url();
  if (parsed != nullptr && curl_url_set(parsed, CURLUPART_URL, url.c_str(), 0) == CURLUE_OK) {
    const auto part = [&](CURLUPart which, unsigned flags) {
      char* text = nullptr;
      std::string out;
      if (curl_url_get(parsed, which, &text, flags) == CURLUE_OK) out = lower(text);
      curl_free(text);
      return out;
    };
    parts = {part(CURLUPART_SCHEME, 0), part(CURLUPART_HOST, 0), part(CURLUPART_PORT, CURLU_DEFAULT_PORT)};
  }
  curl_url_cleanup(parsed);
  if (parts.host.empty() || (parts.scheme != "http" && parts.scheme != "https")) {
    throw invalid("{}: not an http or https address", url);
  }
  return parts;
}

// `location` may be relative to `base`.
std::string resolve_url(const std::string& base, const std::string& location) {
  CURLU* parsed = curl_url();
  char* text = nullptr;
  std::string out;
  if (parsed != nullptr && curl_url_set(parsed, CURLUPART_URL, base.c_str(), 0) == CURLUE_OK &&
      curl_url_set(parsed, CURLUPART_URL, location.c_str(), 0) == CURLUE_OK &&
      curl_url_get(parsed, CURLUPART_URL, &text, 0) == CURLUE_OK) {
    out = text;
  }
  curl_free(text);
  curl_url_cleanup(parsed);
  if (out.empty()) throw failed("{}: the server redirects to a bad address", base);
  return out;
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool is_transient(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    default:
      return false;
  }
}

int64_t retry_after_us(const HttpReply& reply) {
  const std::string text = reply.header("retry-after");
  int64_t seconds = 0;
  std::from_chars(text.data(), text.data() + text.size(), seconds);
  return std::clamp<int64_t>(seconds, 0, 60) * 1'000'000;
}

void init_library() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

}  // namespace

std::string HttpReply::header(std::string_view name) const {
  const auto it = headers.find(std::string(name));
  return it == headers.end() ? "" : it->second;
}

std::string url_escape(std::string_view text, std::string_view keep) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-_.~").find(c) != std::string_view::npos ||
                       keep.find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

// One request with its redirects, and where its parts go.
struct HttpClient::Transfer {
  std::string url;
  bool head = false;
  int64_t range_begin = 0;
  std::function<bool(const HttpReply&)> stop;   // null: follow every redirect
  std::function<bool(const HttpReply&)> start;  // before the first byte of a 200 or 206
  std::function<bool(std::string_view)> data;   // null: into reply.body
  int64_t max_body_bytes = 0;
  HttpReply reply;
  bool started = false;
  bool ended_by_caller = false;
  bool too_long = false;
  std::optional<Error> error;  // thrown by a callback

  static size_t on_header(char* line, size_t, size_t bytes, void* self) {
    HttpReply& reply = static_cast<Transfer*>(self)->reply;
    auto& headers = reply.headers;
    const std::string_view text = trim({line, bytes});
    if (text.starts_with("HTTP/")) {  // the status line; an interim reply may have come before
      headers.clear();
      const size_t space = std::min(text.find(' '), text.size() - 1);
      std::from_chars(text.data() + space + 1, text.data() + text.size(), reply.status);
    }
    const size_t colon = text.find(':');
    if (colon != std::string_view::npos && headers.size() < kMaxHeaders) {
      headers[lower(text.substr(0, colon))] = trim(text.substr(colon + 1));
    }
    return bytes;
  }

  static size_t on_body(char* bytes, size_t, size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    return transfer.take({bytes, count}) ? count : 0;
  }

  bool take(std::string_view bytes) {
    const bool wanted = data != nullptr && (reply.status == 200 || reply.status == 206);
    if (!wanted) {
      // The text of an error or of a redirect is cut, not refused.
      const bool answer = data == nullptr && reply.status == 200;
      too_long = answer && static_cast<int64_t>(reply.body.size() + bytes.size()) > max_body_bytes;
      if (too_long) return false;
      const size_t room = answer ? bytes.size() : size_t{65536} - std::min<size_t>(65536, reply.body.size());
      reply.body.append(bytes.substr(0, room));
      return true;
    }
    try {
      ended_by_caller = !((std::exchange(started, true) || start(reply)) && data(bytes));
    } catch (const Error& e) {  // must not unwind through libcurl
      error = e;
      ended_by_caller = true;
    }
    return !ended_by_caller;
  }
};

HttpClient::HttpClient(std::string_view origin, std::optional<std::string> token) : token_(std::move(token)) {
  init_library();
  origin_ = split_url(std::string(origin)).origin();
  handle_ = curl_easy_init();
  if (handle_ == nullptr) throw failed("cannot start libcurl");
}

HttpClient::~HttpClient() { curl_easy_cleanup(handle_); }

void HttpClient::perform(Transfer& transfer) {
  CURL* curl = static_cast<CURL*>(handle_);
  curl_easy_reset(curl);
  transfer.reply = HttpReply{};
  transfer.reply.url = transfer.url;
  transfer.started = false;
  curl_easy_setopt(curl, CURLOPT_URL, transfer.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "atom/0.1");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L * 1024);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Transfer::on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  if (transfer.head) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  const std::string range = fmt::format("{}-", transfer.range_begin);
  if (transfer.range_begin > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  curl_slist* headers =
      curl_slist_append(nullptr, "Accept-Encoding: identity");  // sizes must be those of files
  if (token_ && split_url(transfer.url).origin() == origin_) {
    headers = curl_slist_append(headers, ("Authorization: Bearer " + *token_).c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  const CURLcode code = curl_easy_perform(curl);
  curl_slist_free_all(headers);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, nullptr);

  if (transfer.error) throw *transfer.error;
  if (transfer.too_long)
    throw failed("{}: the answer is longer than {} bytes", transfer.url, transfer.max_body_bytes);
  if (code != CURLE_OK && !transfer.ended_by_caller) {
    const std::string message = fmt::format("{}: {}", transfer.url, curl_easy_strerror(code));
    if (is_transient(code)) throw TransientError(Errc::failed, message);
    throw Error(Errc::failed, message);
  }
}

HttpReply HttpClient::follow(Transfer& transfer) {
  const bool secure = transfer.url.starts_with("https:");
  for (int hop = 0; hop < kMaxHops; ++hop) {
    perform(transfer);
    HttpReply& reply = transfer.reply;
    if (reply.status == 408 || reply.status == 429 || reply.status >= 500) {
      TransientError error(Errc::failed, fmt::format("{}: HTTP status {}", transfer.url, reply.status));
      error.wait_us = retry_after_us(reply);
      throw error;
    }
    if (!is_redirect(reply.status) || (transfer.stop && transfer.stop(reply))) return std::move(reply);
    transfer.url = resolve_url(transfer.url, reply.header("location"));
    if (secure && !transfer.url.starts_with("https:")) {
      throw failed("{}: redirected from https to an unencrypted address; refused", transfer.url);
    }
  }
  throw failed("{}: more than {} redirects", transfer.url, kMaxHops);
}

HttpReply HttpClient::get(const std::string& url, int64_t max_body_bytes) {
  Transfer transfer;
  transfer.url = url;
  transfer.max_body_bytes = max_body_bytes;
  return follow(transfer);
}

HttpReply HttpClient::head(const std::string& url, const std::function<bool(const HttpReply&)>& stop) {
  Transfer transfer;
  transfer.url = url;
  transfer.head = true;
  transfer.stop = stop;
  return follow(transfer);
}

HttpReply HttpClient::stream(const std::string& url, int64_t range_begin,
                             const std::function<bool(const HttpReply&)>& start,
                             const std::function<bool(std::string_view)>& data) {
  Transfer transfer;
  transfer.url = url;
  transfer.range_begin = range_begin;
  transfer.start = start;
  transfer.data = data;
  HttpReply reply = follow(transfer);
  const bool good = reply.status == 200 || reply.status == 206;
  if (good && !transfer.started) start(reply);  // an empty body
  return reply;
}

}  // namespace atom
