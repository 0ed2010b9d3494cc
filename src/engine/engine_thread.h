// EngineThread: gives an Engine its thread and an inbox, so that many threads may ask it for work.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/engine.h"

namespace atom {

// Hears of one request, on the engine's thread: must be quick and must not throw.
class RequestListener {
 public:
  virtual ~RequestListener() = default;
  // The engine has queued the request; its outputs follow.
  virtual void on_accepted() = 0;
  virtual void on_output(OutputDelta&& delta) = 0;
  // Nothing more will come: refused (Errc::invalid), or the engine has failed or stopped (Errc::failed).
  virtual void on_failed(const Error& error) = 0;
};

// Where the engine's thread is; readable at any time, even while a step hangs.
struct EngineBeat {
  int64_t steps = 0;            // finished
  int64_t step_started_us = 0;  // of the step being computed; 0 between steps
  int64_t requests = 0;         // that have not ended, those in the inbox included
  bool failed = false;          // a step threw: nothing is computed any more
};

class EngineThread {
 public:
  using Ticket = int64_t;

  // The engine must outlive this object, and nobody else may touch it meanwhile.
  explicit EngineThread(Engine& engine);
  ~EngineThread() { stop(); }
  EngineThread(const EngineThread&) = delete;

  // From any thread, a listener's included.
  Ticket submit(Request request, std::shared_ptr<RequestListener> listener);
  // Waits for the step being computed, then ends every request with `failed`, later ones at once. Not for a
  // listener to call.
  void stop();
  // The request's samples end with `cancelled` before the next step. Unknown tickets are ignored.
  void cancel(Ticket ticket);

  EngineBeat beat() const;
  EngineStats stats() const;    // as of the last step
  std::string failure() const;  // why beat().failed
  // Requests that wait to be run: in the inbox, and in the scheduler as of the last step.
  int64_t waiting() const;

 private:
  struct Submission {
    Ticket ticket;
    Request request;
    std::shared_ptr<RequestListener> listener;
  };
  struct Cancellation {
    Ticket ticket;
  };
  struct Active {
    RequestId id;
    std::shared_ptr<RequestListener> listener;
    int32_t unfinished;  // samples
  };

  void run();
  bool take_inbox();  // waits for work if there is none; false: stop
  void accept(Submission&& submission);
  void publish_stats();
  void fail_all(const Error& error);

  Engine& engine_;
  std::unordered_map<Ticket, Active> active_;  // the engine's thread only
  std::atomic<int64_t> steps_{0}, step_started_us_{0}, requests_{0}, inbox_size_{0}, next_ticket_{0};
  std::atomic<bool> failed_{false};

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable arrived_;
  std::vector<std::variant<Submission, Cancellation>> inbox_;
  bool stop_ = false;
  EngineStats stats_;
  std::string failure_;

  std::thread thread_;  // last: starts when everything else stands
};

}  // namespace atom
