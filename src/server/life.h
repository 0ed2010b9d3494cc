// Life: what the server says about itself, from the opened port to the drained end. Thread-safe.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/json.h"
#include "server/http_message.h"

namespace atom::server {

class Life {
 public:
  enum class State : uint8_t { starting, loading, ready, draining, failed };

  // A phase of loading ("download", "load") has come this far, in bytes.
  void progress(const char* phase, int64_t done, int64_t total);
  void ready();
  void drain();
  void fail(const std::string& why);
  // Requests had to be ended: the server counts as degraded for a minute.
  void trouble(const std::string& what);
  // A step of the engine has hung for this long; 0: it goes on.
  void stuck(double seconds);

  State state() const;
  bool accepts_requests() const;  // ready and not stuck

  // {"status": "starting" | "loading" | "ready" | "degraded" | "stuck" | "draining" | "failed", ...}; while
  // loading with phase, progress (0 to 1), bytes, rate and seconds_left.
  Json report() const;
  int http_status() const;  // 200 if a load balancer should send requests here, else 503

 private:
  const char* status() const;  // with the mutex held

  mutable std::mutex mutex_;
  State state_ = State::starting;
  std::string phase_, why_, trouble_;
  int64_t done_ = 0, total_ = 0, phase_started_us_ = 0, trouble_us_ = 0;
  double stuck_seconds_ = 0;
};

// Server-sent events with the report each time it changes, until the model is ready or has failed.
std::unique_ptr<Exchange> stream_load(const Life& life);

}  // namespace atom::server
