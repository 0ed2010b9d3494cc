// What the server counts, in Prometheus' text form. Thread-safe.
#pragma once
#include <memory>
#include <string>

#include "engine/engine_thread.h"

namespace atom::server {

class Metrics {
 public:
  Metrics();
  ~Metrics();

  // An HTTP request has been answered (status 499: the client left before).
  void answered(const std::string& route, int status, double seconds);
  // Of a generation: seconds from its submission to its first token.
  void first_token(double seconds);
  // Of a sample: seconds from a token to the next ones, which came together.
  void next_tokens(double seconds, int64_t tokens);
  void finished(FinishReason reason, const Usage& usage);
  // A request was refused because the engine hung.
  void watchdog_ended(int64_t requests);

  // What changes by itself, put into the gauges before they are written.
  struct Now {
    EngineBeat beat;
    EngineStats stats;
    int64_t connections = 0, in_flight = 0;
    int64_t weight_bytes = 0, cache_bytes = 0, weight_bytes_per_step = 0;
    double memory_bytes_per_second = 0;  // what the machine can read; 0: not measured
    bool ready = false;
  };
  std::string text(const Now& now);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace atom::server
