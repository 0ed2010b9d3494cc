// What is known about each request while it is answered: identity, counts, and a way to end it from outside.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "engine/request.h"
#include "server/api_error.h"

namespace atom::server {

class Metrics;

// Identity of one HTTP request, for logs and limits. Shared by whoever works on it.
struct RequestContext {
  std::string id;           // the x-request-id of the answer
  std::string traceparent;  // W3C trace context as received; "" without
  std::string key;          // a short fingerprint of the API key; "" without keys
  std::string method, path, client;
  int64_t started_us = 0;
  std::atomic<int64_t> prompt_tokens{0}, output_tokens{0};
};

class InFlightTable;

// A generation's place in the table, from its submission until the engine has let go of it.
class InFlight {
 public:
  ~InFlight();
  InFlight(const InFlight&) = delete;

  // On the engine's thread: a delta of this many tokens of a sample has come. `last_us`: when the one before
  // came (0: there was none); becomes now.
  void on_tokens(int64_t tokens, int64_t& last_us);
  // On the engine's thread: a sample has ended. Samples of one prompt count it once.
  void on_finish(FinishReason reason, const Usage& usage, bool first_of_prompt);

  // The answer must end with this error (only the first counts). Wakes the connection. From any thread.
  void end_with(const ApiError& error);
  std::optional<ApiError> ended_with() const;
  void set_wake(std::function<void()> wake);  // empty: no more wakes

 private:
  friend class InFlightTable;
  InFlight(InFlightTable& table, std::shared_ptr<RequestContext> context);

  InFlightTable& table_;
  const std::shared_ptr<RequestContext> context_;
  const int64_t submitted_us_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  std::optional<ApiError> error_;
};

// All generations that are under way. Thread-safe; outlives them.
class InFlightTable {
 public:
  explicit InFlightTable(Metrics& metrics) : metrics_(metrics) {}

  // Throws ApiError (429) if the context's key has `max_per_key` already; 0: no limit.
  std::shared_ptr<InFlight> begin(std::shared_ptr<RequestContext> context, int64_t max_per_key);
  int64_t size() const;
  // Ends all with an error; returns how many.
  int64_t end_all(const ApiError& error);

 private:
  friend class InFlight;
  Metrics& metrics_;
  mutable std::mutex mutex_;
  std::unordered_set<InFlight*> all_;
  std::unordered_map<std::string, int64_t> per_key_;
};

}  // namespace atom::server
