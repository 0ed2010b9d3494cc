#include "server/life.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "server/openai_form.h"

namespace atom::server {
namespace {

constexpr int64_t kDegradedUs = 60'000'000;
constexpr int64_t kLoadPollUs = 200'000;

class LoadStream : public Exchange {
 public:
  explicit LoadStream(const Life& life) : life_(life) {}
  void start(std::function<void()>) override {}
  void poll(Output& output) override {
    if (!begun_) {
      output.head = ReplyHead{
          .content_type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}}, .streamed = true};
      begun_ = true;
    }
    const Life::State state = life_.state();
    std::string report = dump(life_.report());
    if (report != last_) output.bytes += "data: " + report + "\n\n";
    last_ = std::move(report);
    output.done = state != Life::State::starting && state != Life::State::loading;
    output.poll_again_us = kLoadPollUs;
  }

 private:
  const Life& life_;
  std::string last_;
  bool begun_ = false;
};

}  // namespace

void Life::progress(const char* phase, int64_t done, int64_t total) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::starting && state_ != State::loading) return;
  state_ = State::loading;
  if (phase_ != phase) {
    phase_ = phase;
    phase_started_us_ = now_us();
  }
  done_ = done;
  total_ = total;
}

void Life::ready() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::starting || state_ == State::loading) state_ = State::ready;
}

void Life::drain() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::failed) state_ = State::draining;
}

void Life::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  state_ = State::failed;
  why_ = why;
}

void Life::trouble(const std::string& what) {
  const std::lock_guard lock(mutex_);
  trouble_ = what;
  trouble_us_ = now_us();
}

void Life::stuck(double seconds) {
  const std::lock_guard lock(mutex_);
  stuck_seconds_ = seconds;
}

Life::State Life::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

bool Life::accepts_requests() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::ready && stuck_seconds_ == 0;
}

const char* Life::status() const {
  switch (state_) {
    case State::starting:
      return "starting";
    case State::loading:
      return "loading";
    case State::draining:
      return "draining";
    case State::failed:
      return "failed";
    case State::ready:
      break;
  }
  if (stuck_seconds_ > 0) return "stuck";
  return trouble_us_ != 0 && now_us() - trouble_us_ < kDegradedUs ? "degraded" : "ready";
}

Json Life::report() const {
  const std::lock_guard lock(mutex_);
  const std::string name = status();
  Json report = {{"status", name}};
  if (name == "loading") {
    const double share = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 0;
    const double seconds = seconds_since(phase_started_us_);
    const double rate = seconds > 0 ? static_cast<double>(done_) / seconds : 0;
    report["phase"] = phase_;
    report["progress"] = share;
    report["done_bytes"] = done_;
    report["total_bytes"] = total_;
    report["bytes_per_second"] = rate;
    report["seconds_left"] = rate > 0 ? Json(static_cast<double>(total_ - done_) / rate) : Json(nullptr);
    report["message"] = rate > 0 ? fmt::format("{} {:.0f} %, {:.0f} s left", phase_, share * 100,
                                               static_cast<double>(total_ - done_) / rate)
                                 : fmt::format("{} {:.0f} %", phase_, share * 100);
  } else if (name == "degraded") {
    report["message"] = trouble_;
  } else if (name == "stuck") {
    report["message"] = fmt::format("a step of the engine has not ended for {:.1f} s", stuck_seconds_);
  } else if (name == "failed") {
    report["message"] = why_;
  }
  return report;
}

int Life::http_status() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::ready && stuck_seconds_ == 0 ? 200 : 503;
}

std::unique_ptr<Exchange> stream_load(const Life& life) { return std::make_unique<LoadStream>(life); }

}  // namespace atom::server
