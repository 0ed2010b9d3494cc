#include "server/service.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "base/text_util.h"
#include "server/chat_api.h"
#include "server/chat_task.h"
#include "server/completions_api.h"
#include "server/generation.h"
#include "server/messages_api.h"
#include "server/model_api.h"
#include "server/openai_form.h"
#include "server/responses_api.h"
#include "server/web_page.h"

namespace atom::server {

struct Service::Route {
  const char* path;
  std::string_view methods;  // "GET" or "GET, DELETE"
  bool open = false;         // needs no key
  GenerationPlan (*plan)(const Json&, const ServedModel&) = nullptr;
  Json (*compute)(const Json&, const ServedModel&) = nullptr;
};

namespace {

constexpr const char* kModelPrefix = "/v1/models/";
constexpr const char* kResponsePrefix = "/v1/responses/";

bool is_anthropic(const std::string& path) { return path.starts_with("/v1/messages"); }

Reply error_of(const ApiError& error, const std::string& path) {
  Reply reply = json_reply(is_anthropic(path) ? error.anthropic_body() : error.openai_body(), error.status);
  if (error.status == 401) reply.head.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 503 || error.status == 429) reply.head.headers.emplace_back("Retry-After", "1");
  return reply;
}

bool is_id(std::string_view text, size_t max_size) {
  return !text.empty() && text.size() <= max_size &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

// Adds the headers that every answer carries; counts and logs when the answer has ended.
class DressedExchange : public Exchange {
 public:
  DressedExchange(std::unique_ptr<Exchange> inner, Headers headers, std::string route,
                  std::shared_ptr<RequestContext> context, Metrics& metrics)
      : inner_(std::move(inner)),
        headers_(std::move(headers)),
        route_(std::move(route)),
        context_(std::move(context)),
        metrics_(metrics) {}
  ~DressedExchange() override {
    inner_.reset();
    const double seconds = seconds_since(context_->started_us);
    const int status = done_ ? status_ : 499;  // the client left
    metrics_.answered(route_, status, seconds);
    if (!log_enabled(LogLevel::info)) return;
    Json line = {{"request", context_->id}, {"method", context_->method},
                 {"path", context_->path},  {"client", context_->client},
                 {"status", status},        {"ms", static_cast<int64_t>(seconds * 1e3)}};
    if (!context_->key.empty()) line["key"] = context_->key;
    if (!context_->traceparent.empty()) line["traceparent"] = context_->traceparent;
    if (context_->prompt_tokens > 0) line["prompt_tokens"] = context_->prompt_tokens.load();
    if (context_->output_tokens > 0) line["output_tokens"] = context_->output_tokens.load();
    log_info("{}", dump(line));
  }

  void start(std::function<void()> wake) override { inner_->start(std::move(wake)); }
  void poll(Output& output) override {
    inner_->poll(output);
    if (output.head) {
      status_ = output.head->status;
      output.head->headers.insert(output.head->headers.end(), headers_.begin(), headers_.end());
    }
    done_ = output.done;
  }

 private:
  std::unique_ptr<Exchange> inner_;
  const Headers headers_;
  const std::string route_;
  const std::shared_ptr<RequestContext> context_;
  Metrics& metrics_;
  int status_ = 0;
  bool done_ = false;
};

}  // namespace

const Service::Route* Service::find_route(const std::string& path) {
  static const Route routes[] = {
      {.path = "/", .methods = "GET", .open = true},
      {.path = "/index.html", .methods = "GET", .open = true},
      {.path = "/app.js", .methods = "GET", .open = true},
      {.path = "/style.css", .methods = "GET", .open = true},
      {.path = "/health", .methods = "GET", .open = true},
      {.path = "/load", .methods = "GET", .open = true},
      {.path = "/metrics", .methods = "GET"},
      {.path = "/inspect", .methods = "GET"},
      {.path = "/v1/models", .methods = "GET"},
      {.path = "/v1/chat/completions", .methods = "POST", .plan = plan_chat},
      {.path = "/v1/completions", .methods = "POST", .plan = plan_completions},
      {.path = "/v1/messages", .methods = "POST", .plan = plan_messages},
      {.path = "/v1/messages/count_tokens", .methods = "POST", .compute = count_message_tokens},
      {.path = "/v1/responses", .methods = "POST"},
      {.path = "/v1/embeddings", .methods = "POST"},
      {.path = "/tokenize", .methods = "POST", .compute = tokenize},
      {.path = "/detokenize", .methods = "POST", .compute = detokenize},
  };
  static const Route one_model{.path = kModelPrefix, .methods = "GET"};
  static const Route one_response{.path = kResponsePrefix, .methods = "GET, DELETE"};
  for (const Route& route : routes) {
    if (path == route.path) return &route;
  }
  if (path.starts_with(kModelPrefix)) return &one_model;
  return path.starts_with(kResponsePrefix) ? &one_response : nullptr;
}

Service::Service(ServiceOptions options)
    : options_(std::move(options)), keys_(options_.api_keys), watchdog_([this] { watch_engine(); }) {}

Service::~Service() {
  {
    const std::lock_guard lock(watch_mutex_);
    stopping_ = true;
  }
  watch_stop_.notify_one();
  watchdog_.join();
}

void Service::serve(const ServedModel& model, const Metrics::Now& gauges) {
  gauges_ = gauges;
  model_ = &model;
  life_.ready();
}

std::shared_ptr<RequestContext> Service::context_of(const HttpRequest& request) const {
  auto context = std::make_shared<RequestContext>();
  const std::string_view id = request.header("x-request-id");
  context->id = is_id(id, 128) ? std::string(id) : make_id("req_");
  const std::string_view trace = request.header("traceparent");
  if (is_id(trace, 128)) context->traceparent = trace;
  context->method = request.method;
  context->path = request.path;
  context->client = request.client;
  context->started_us = now_us();
  return context;
}

std::string Service::authenticate(const HttpRequest& request) const {
  if (!keys_.required()) return {};
  std::string_view key = request.header("authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (begins_with(key, kBearer)) {
    key.remove_prefix(kBearer.size());
  } else {
    key = request.header("x-api-key");
  }
  if (key.empty()) {
    throw ApiError(401, "missing_api_key",
                   "an API key is needed: send Authorization: Bearer KEY or x-api-key: KEY");
  }
  std::optional<std::string> fingerprint = keys_.match(key);
  if (!fingerprint) throw ApiError(401, "invalid_api_key", "the API key is not known here");
  return *fingerprint;
}

void Service::check(const HttpRequest& request, const Route* route, RequestContext& context) const {
  if (route == nullptr) throw ApiError(404, "not_found", fmt::format("there is no {}", request.path));
  if (!route->open) context.key = authenticate(request);
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  const bool known = method == "GET" || method == "POST" || method == "DELETE";
  if (!known || route->methods.find(method) == std::string_view::npos) {
    throw ApiError(405, "method_not_allowed",
                   fmt::format("{} is answered to {}", request.path, route->methods));
  }
  if (request.method == "POST") {
    if (media_type(request.header("content-type")) != "application/json") {
      throw ApiError(415, "unsupported_media_type",
                     "the body must be JSON: send Content-Type: application/json");
    }
  }
}

Headers Service::cors_headers(const HttpRequest& request) const {
  const std::string origin(request.header("origin"));
  const auto listed = [&](const std::string& name) {
    return std::find(options_.cors_origins.begin(), options_.cors_origins.end(), name) !=
           options_.cors_origins.end();
  };
  if (origin.empty() || (!listed(origin) && !listed("*"))) return {};
  return {{"Access-Control-Allow-Origin", listed("*") ? "*" : origin}, {"Vary", "Origin"}};
}

std::unique_ptr<Exchange> Service::dress(std::unique_ptr<Exchange> exchange, const HttpRequest& request,
                                         const Route* route, std::shared_ptr<RequestContext> context) {
  Headers headers = cors_headers(request);
  headers.emplace_back("x-request-id", context->id);
  if (!context->traceparent.empty()) headers.emplace_back("traceparent", context->traceparent);
  headers.emplace_back("X-Content-Type-Options", "nosniff");
  // Only known routes become labels of metrics.
  return std::make_unique<DressedExchange>(std::move(exchange), std::move(headers),
                                           route == nullptr ? "other" : route->path, std::move(context),
                                           metrics_);
}

std::optional<Reply> Service::refuse_early(const HttpRequest& head) {
  if (head.method == "OPTIONS") {
    Reply reply{ReplyHead{.status = 204, .headers = cors_headers(head)}, ""};
    if (!reply.head.headers.empty()) {
      reply.head.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE");
      const std::string_view asked = head.header("access-control-request-headers");
      reply.head.headers.emplace_back("Access-Control-Allow-Headers",
                                      asked.empty() ? "authorization, content-type, x-api-key" : asked);
      reply.head.headers.emplace_back("Access-Control-Max-Age", "600");
    }
    return reply;
  }
  const Route* route = find_route(head.path);
  const std::shared_ptr<RequestContext> context = context_of(head);
  try {
    check(head, route, *context);
    return std::nullopt;
  } catch (const ApiError& error) {
    Reply reply = error_of(error, head.path);
    if (error.status == 405) reply.head.headers.emplace_back("Allow", route->methods);
    const std::unique_ptr<Exchange> dressed = dress(exchange_of(std::move(reply)), head, route, context);
    Exchange::Output output;
    dressed->poll(output);
    return Reply{std::move(*output.head), std::move(output.bytes)};
  }
}

std::unique_ptr<Exchange> Service::handle(HttpRequest&& request) {
  const Route* route = find_route(request.path);
  const std::shared_ptr<RequestContext> context = context_of(request);
  std::unique_ptr<Exchange> exchange;
  try {
    check(request, route, *context);
    exchange = dispatch(request, *route, context);
  } catch (const ApiError& error) {
    exchange = exchange_of(error_of(error, request.path));
  } catch (const Error& error) {
    exchange = exchange_of(error_of(from_error(error), request.path));
  } catch (const std::exception& error) {
    log_error("{} {}: {}", request.method, request.path, error.what());
    exchange = exchange_of(
        error_of(ApiError(500, "internal_error", "the server failed; see its log"), request.path));
  }
  return dress(std::move(exchange), request, route, context);
}

Reply Service::error_reply(int status, const std::string& message) {
  Reply reply = error_of(ApiError(status, status == 413 ? "body_too_large" : "bad_request", message), "");
  reply.head.headers.emplace_back("x-request-id", make_id("req_"));
  return reply;
}

const ServedModel& Service::model() const {
  const ServedModel* model = model_;
  if (model == nullptr) {
    throw ApiError(503, "model_not_ready", fmt::format("the model is not ready: {}", dump(life_.report())));
  }
  return *model;
}

std::unique_ptr<Exchange> Service::dispatch(const HttpRequest& request, const Route& route,
                                            const std::shared_ptr<RequestContext>& context) {
  const std::string_view path = route.path;
  if (path == "/health") return exchange_of(json_reply(life_.report(), life_.http_status()));
  if (std::optional<Reply> page = web_page(request.path)) return exchange_of(std::move(*page));
  if (path == "/load") return stream_load(life_);
  if (path == "/metrics") return exchange_of(metrics_reply());
  if (path == "/inspect") return exchange_of(json_reply(model().inspection));
  if (path == "/v1/models") return exchange_of(json_reply(model_list(model())));
  if (path == kModelPrefix) {
    const std::string name = percent_decoded(std::string_view(request.path).substr(path.size()));
    return exchange_of(json_reply(model_entry(model(), name)));
  }
  if (path == kResponsePrefix) {
    const std::string id = request.path.substr(path.size());
    if (request.query.find("stream=true") != std::string::npos)
      throw ApiError(400, "unsupported_value", "stream: a stored response is not streamed", "stream");
    return exchange_of(json_reply(request.method == "DELETE"
                                      ? delete_response(id, responses_, context->key)
                                      : stored_response(id, responses_, context->key)));
  }
  if (path == "/v1/embeddings") refuse_embeddings(model());
  if (route.compute != nullptr)
    return exchange_of(json_reply(route.compute(parse_body(request.body), model())));
  return generate_answer(request, route, context);
}

std::unique_ptr<Exchange> Service::generate_answer(const HttpRequest& request, const Route& route,
                                                   const std::shared_ptr<RequestContext>& context) {
  const ServedModel& served = model();
  if (!life_.accepts_requests()) {
    throw ApiError(503, "not_ready", fmt::format("no request is taken now: {}", dump(life_.report())));
  }
  if (served.engine->waiting() >= options_.max_waiting) {
    throw ApiError(503, "queue_full",
                   fmt::format("{} requests wait already; try again later", options_.max_waiting));
  }
  std::shared_ptr<InFlight> flight = in_flight_.begin(context, options_.max_per_key);
  const Json body = parse_body(request.body);
  GenerationPlan plan = route.plan != nullptr ? route.plan(body, served)
                                              : plan_response(body, served, responses_, context->key);
  const int64_t limit = context->started_us + options_.max_seconds * 1'000'000;
  plan.deadline_us = plan.deadline_us == 0 ? limit : std::min(plan.deadline_us, limit);
  return generate(*served.engine, std::move(plan), std::move(flight));
}

Reply Service::metrics_reply() {
  Metrics::Now now = gauges_;
  if (const ServedModel* model = model_) {
    now.beat = model->engine->beat();
    now.stats = model->engine->stats();
    now.ready = life_.accepts_requests();
  } else {
    now = {};
  }
  now.in_flight = in_flight_.size();
  now.connections = connections_ ? connections_() : 0;
  return {ReplyHead{.content_type = "text/plain; version=0.0.4; charset=utf-8"}, metrics_.text(now)};
}

void Service::watch_engine() {
  int64_t ended_step = -1;  // whose requests have been ended
  std::unique_lock lock(watch_mutex_);
  while (!watch_stop_.wait_for(lock, std::chrono::milliseconds(200), [&] { return stopping_; })) {
    const ServedModel* model = model_;
    if (model == nullptr) continue;
    const EngineBeat beat = model->engine->beat();
    if (beat.failed) {
      life_.fail("the engine has failed: " + model->engine->failure());
      continue;
    }
    const double seconds = beat.step_started_us == 0 ? 0 : seconds_since(beat.step_started_us);
    const bool hangs = seconds > options_.stuck_seconds;
    life_.stuck(hangs ? seconds : 0);
    if (!hangs || ended_step == beat.steps) continue;
    ended_step = beat.steps;
    const EngineStats stats = model->engine->stats();
    const std::string what =
        fmt::format("step {} of the engine hung for {:.1f} s with {} running and {} waiting sequences",
                    beat.steps, seconds, stats.scheduler.running, stats.scheduler.waiting);
    const int64_t count = in_flight_.end_all(ApiError(503, "engine_stuck", what));
    metrics_.watchdog_ended(count);
    life_.trouble(fmt::format("{}; {} requests were ended", what, count));
    log_error("{}; {} requests were ended", what, count);
  }
}

}  // namespace atom::server
