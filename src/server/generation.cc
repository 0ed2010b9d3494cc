#include "server/generation.h"

#include <deque>
#include <mutex>
#include <utility>

#include "base/clock.h"

namespace atom::server {
namespace {

constexpr int64_t kKeepAliveUs = 15'000'000;  // of silence, before a comment shows that the stream lives
constexpr int64_t kEntryBytes = 32;           // of one log-probability

// Roughly. Log-probabilities of the prompt do not count: the prompt bounds them.
int64_t size_of(const OutputDelta& delta) {
  int64_t size = static_cast<int64_t>(delta.text.size() + delta.token_ids.size() * sizeof(int32_t)) + 64;
  for (const auto& entries : delta.logprobs) size += kEntryBytes * static_cast<int64_t>(entries.size());
  return size;
}

template <class T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// Where the engine's thread leaves the outputs of one request and the connection finds them. News of one
// sample that wait are one delta, so a slow client gets fewer and larger pieces.
class Outbox : public RequestListener {
 public:
  Outbox(std::shared_ptr<InFlight> in_flight, int32_t samples, int64_t max_bytes)
      : in_flight_(std::move(in_flight)),
        max_bytes_(max_bytes),
        last_tokens_us_(static_cast<size_t>(samples), 0) {}

  struct Status {
    bool accepted = false;
    std::optional<ApiError> error;
  };

  void on_accepted() override {
    const std::lock_guard lock(mutex_);
    status_.accepted = true;
    signal();
  }
  void on_output(OutputDelta&& delta) override {
    if (!delta.token_ids.empty()) {
      in_flight_->on_tokens(static_cast<int64_t>(delta.token_ids.size()),
                            last_tokens_us_[static_cast<size_t>(delta.index)]);
    }
    if (delta.finish) in_flight_->on_finish(*delta.finish, delta.usage, delta.index == 0);
    const std::lock_guard lock(mutex_);
    if (closed_ || status_.error) return;
    bytes_ += size_of(delta);
    if (bytes_ > max_bytes_) {
      deltas_.clear();
      status_.error =
          ApiError(503, "client_too_slow", "the client reads more slowly than the answer is generated");
    } else {
      merge(std::move(delta));
    }
    signal();
  }
  void on_failed(const Error& error) override {
    const std::lock_guard lock(mutex_);
    if (!status_.error) status_.error = from_error(error);
    signal();
  }

  void set_wake(std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }
  // To be looked at before what there is is taken: news from here on wake again.
  Status status() {
    const std::lock_guard lock(mutex_);
    signalled_ = false;
    return status_;
  }
  std::deque<OutputDelta> take() {
    const std::lock_guard lock(mutex_);
    bytes_ = 0;
    return std::exchange(deltas_, {});
  }
  // Nobody listens any more.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    wake_ = {};
    deltas_.clear();
  }

 private:
  void merge(OutputDelta&& delta) {
    for (auto last = deltas_.rbegin(); last != deltas_.rend(); ++last) {
      if (last->index != delta.index) continue;
      last->text += delta.text;
      append(last->token_ids, std::move(delta.token_ids));
      append(last->logprobs, std::move(delta.logprobs));
      append(last->prompt_logprobs, std::move(delta.prompt_logprobs));
      last->finish = delta.finish;
      last->error = std::move(delta.error);
      last->usage = delta.usage;
      return;
    }
    deltas_.push_back(std::move(delta));
  }
  void signal() {
    if (signalled_ || !wake_) return;
    signalled_ = true;
    wake_();
  }

  const std::shared_ptr<InFlight> in_flight_;
  const int64_t max_bytes_;
  std::vector<int64_t> last_tokens_us_;  // of each sample; the engine's thread
  std::mutex mutex_;
  std::function<void()> wake_;
  bool signalled_ = false, closed_ = false;
  int64_t bytes_ = 0;
  std::deque<OutputDelta> deltas_;
  Status status_;
};

class Generation : public Exchange {
 public:
  Generation(EngineThread& engine, GenerationPlan plan, std::shared_ptr<InFlight> in_flight)
      : engine_(engine), plan_(std::move(plan)), in_flight_(std::move(in_flight)) {}
  ~Generation() override { cancel(); }

  void start(std::function<void()> wake) override {
    in_flight_->set_wake(wake);
    // A whole answer is kept by its writer anyway, and its client has nothing to read yet.
    const int64_t max_bytes = plan_.writer->streams() ? plan_.max_queued_bytes : INT64_MAX;
    for (Request& request : plan_.requests) {
      unfinished_ += request.n;
      auto outbox = std::make_shared<Outbox>(in_flight_, request.n, max_bytes);
      outbox->set_wake(wake);
      outboxes_.push_back(outbox);
      tickets_.push_back(engine_.submit(std::move(request), std::move(outbox)));
    }
    last_sent_us_ = now_us();
  }

  void poll(Output& output) override {
    const size_t before = output.bytes.size();
    std::optional<ApiError> error = in_flight_->ended_with();
    bool accepted = true;
    for (const auto& outbox : outboxes_) {
      Outbox::Status status = outbox->status();
      accepted = accepted && status.accepted;
      if (!error) error = std::move(status.error);
    }
    const int64_t now = now_us();
    if (!error && plan_.deadline_us != 0 && now >= plan_.deadline_us) {
      error = ApiError(504, "deadline_exceeded", "the request's time limit has passed");
    }
    const bool streams = plan_.writer->streams();
    if (!error && !begun_ && streams && accepted) {
      output.head = ReplyHead{
          .content_type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}}, .streamed = true};
      plan_.writer->begin(output.bytes);
      begun_ = true;
    }
    // A stream's pieces wait for its head.
    for (size_t prompt = 0; !error && (begun_ || !streams) && prompt < outboxes_.size(); ++prompt) {
      for (OutputDelta& delta : outboxes_[prompt]->take()) {
        if (delta.finish) --unfinished_;
        if (delta.finish == FinishReason::failed) {
          error = ApiError(500, "generation_failed", "the generation failed: " + delta.error);
          break;
        }
        plan_.writer->take(prompt, std::move(delta), output.bytes);
      }
    }
    if (error) {
      fail(*error, output);
    } else if (unfinished_ == 0) {
      plan_.writer->end(output.bytes);
      if (!begun_) output.head = ReplyHead{};
      output.done = true;
    } else {
      if (plan_.writer->satisfied()) cancel_requests();  // their ends tell what was used
      wait(now, output, before);
    }
    if (output.done) cancel();
  }

 private:
  void fail(const ApiError& error, Output& output) {
    output.bytes += plan_.writer->error(error, begun_);
    if (!begun_) {
      output.head = ReplyHead{.status = error.status};
      if (error.status == 503 || error.status == 429) output.head->headers.emplace_back("Retry-After", "1");
    }
    output.done = true;
  }

  // Keeps a silent stream alive and says when to look again.
  void wait(int64_t now, Output& output, size_t before) {
    if (output.bytes.size() > before) last_sent_us_ = now;
    if (begun_ && now - last_sent_us_ >= kKeepAliveUs) {
      output.bytes += ": alive\n\n";
      last_sent_us_ = now;
    }
    if (begun_) output.poll_again_us = std::min(output.poll_again_us, last_sent_us_ + kKeepAliveUs - now);
    if (plan_.deadline_us != 0)
      output.poll_again_us = std::min(output.poll_again_us, plan_.deadline_us - now);
  }

  void cancel() {
    in_flight_->set_wake({});
    for (const auto& outbox : outboxes_) outbox->close();
    if (unfinished_ > 0) cancel_requests();
  }
  void cancel_requests() {
    for (const EngineThread::Ticket ticket : std::exchange(tickets_, {})) engine_.cancel(ticket);
  }

  EngineThread& engine_;
  GenerationPlan plan_;
  const std::shared_ptr<InFlight> in_flight_;
  std::vector<std::shared_ptr<Outbox>> outboxes_;
  std::vector<EngineThread::Ticket> tickets_;
  int64_t unfinished_ = 0;  // samples
  int64_t last_sent_us_ = 0;
  bool begun_ = false;
};

}  // namespace

std::unique_ptr<Exchange> generate(EngineThread& engine, GenerationPlan plan,
                                   std::shared_ptr<InFlight> in_flight) {
  return std::make_unique<Generation>(engine, std::move(plan), std::move(in_flight));
}

}  // namespace atom::server
