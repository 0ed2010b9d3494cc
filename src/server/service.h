// Service: from an HTTP request to the endpoint that answers it. Holds everything that lives longer than one
// request: keys, limits, metrics, the table of what is under way, the watchdog.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/api_keys.h"
#include "server/http_message.h"
#include "server/in_flight.h"
#include "server/life.h"
#include "server/metrics.h"
#include "server/response_store.h"
#include "server/served_model.h"

namespace atom::server {

struct ServiceOptions {
  std::vector<std::string> api_keys;
  std::vector<std::string> cors_origins;  // "*" allows all; empty: browsers of other origins are kept out
  int64_t max_per_key = 0;                // generations under way per key; 0: no limit
  int64_t max_waiting = 4096;             // requests that wait in the engine
  int64_t max_seconds = 3600;             // that a generation may take
  double stuck_seconds = 120;             // that a step may take
};

class Service : public HttpHandler {
 public:
  explicit Service(ServiceOptions options);
  ~Service() override;

  Life& life() { return life_; }
  InFlightTable& in_flight() { return in_flight_; }

  // From now on the model answers; it must outlive every exchange. `gauges` gives what metrics say about it.
  void serve(const ServedModel& model, const Metrics::Now& gauges);
  void watch_connections(std::function<int64_t()> count) { connections_ = std::move(count); }

  std::optional<Reply> refuse_early(const HttpRequest& head) override;
  std::unique_ptr<Exchange> handle(HttpRequest&& request) override;
  Reply error_reply(int status, const std::string& message) override;

 private:
  struct Route;
  static const Route* find_route(const std::string& path);

  std::shared_ptr<RequestContext> context_of(const HttpRequest& request) const;
  // Whose key it is; throws ApiError (401).
  std::string authenticate(const HttpRequest& request) const;
  void check(const HttpRequest& request, const Route* route, RequestContext& context) const;
  std::unique_ptr<Exchange> dispatch(const HttpRequest& request, const Route& route,
                                     const std::shared_ptr<RequestContext>& context);
  std::unique_ptr<Exchange> generate_answer(const HttpRequest& request, const Route& route,
                                            const std::shared_ptr<RequestContext>& context);
  const ServedModel& model() const;  // throws ApiError (503) while there is none
  std::unique_ptr<Exchange> dress(std::unique_ptr<Exchange> exchange, const HttpRequest& request,
                                  const Route* route, std::shared_ptr<RequestContext> context);
  Headers cors_headers(const HttpRequest& request) const;
  Reply metrics_reply();
  void watch_engine();

  const ServiceOptions options_;
  const ApiKeys keys_;
  Metrics metrics_;
  InFlightTable in_flight_{metrics_};
  Life life_;
  ResponseStore responses_;
  std::atomic<const ServedModel*> model_{nullptr};
  Metrics::Now gauges_;  // written before model_
  std::function<int64_t()> connections_;

  std::mutex watch_mutex_;
  std::condition_variable watch_stop_;
  bool stopping_ = false;
  std::thread watchdog_;
};

}  // namespace atom::server
