// The service over a tiny model and a real engine thread, without sockets.
#include "server/service.h"

#include <gtest/gtest.h>

#include <condition_variable>

#include "base/clock.h"
#include "engine/test_requests.h"
#include "server/completions_api.h"
#include "server/generation.h"
#include "server/test_model.h"

namespace atom::server {
namespace {

using std::chrono::milliseconds;

// Polls an exchange as a connection does.
class Client {
 public:
  explicit Client(std::unique_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {
    exchange_->start([this] {
      const std::lock_guard lock(mutex_);
      woken_ = true;
      wake_.notify_one();
    });
  }
  ~Client() { exchange_.reset(); }

  // Until the exchange is done, or for half a minute.
  bool finish() {
    const int64_t start = now_us();
    while (!done && seconds_since(start) < 30) {
      poll();
      std::unique_lock lock(mutex_);
      if (!done) wake_.wait_for(lock, milliseconds(50), [&] { return woken_; });
    }
    return done;
  }
  void poll() {
    {
      const std::lock_guard lock(mutex_);
      woken_ = false;
    }
    Exchange::Output output;
    exchange_->poll(output);
    if (output.head) head = output.head;
    body += output.bytes;
    done = output.done;
  }
  void leave() { exchange_.reset(); }

  std::optional<ReplyHead> head;
  std::string body;
  bool done = false;

 private:
  std::unique_ptr<Exchange> exchange_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
};

class Nobody : public RequestListener {
 public:
  void on_accepted() override { accepted = true; }
  void on_output(OutputDelta&&) override {}
  void on_failed(const Error&) override {}

  std::atomic<bool> accepted{false};
};

// A callback that hears of its being copied, as it is for every request of an exchange that starts.
struct HearsOfCopies {
  explicit HearsOfCopies(std::function<void()> f) : on_copy(std::move(f)) {}
  HearsOfCopies(const HearsOfCopies& other) : on_copy(other.on_copy) { on_copy(); }
  HearsOfCopies(HearsOfCopies&&) = default;
  void operator()() const {}
  std::function<void()> on_copy;
};

// Needs one piece of news; its answer is how many tokens were used.
class EasilySatisfied : public AnswerWriter {
 public:
  bool streams() const override { return false; }
  void begin(std::string&) override {}
  void take(size_t, OutputDelta&& delta, std::string&) override {
    news_ = true;
    if (delta.finish) usage_ = delta.usage;
  }
  void end(std::string& out) override { out += std::to_string(usage_.prompt_tokens + usage_.output_tokens); }
  std::string error(const ApiError& error, bool) override { return error.message; }
  bool satisfied() const override { return news_; }

 private:
  bool news_ = false;
  Usage usage_;
};

class ServiceTest : public testing::Test {
 protected:
  // The engine lets go of its requests, which the service knows, before the service goes.
  void TearDown() override { engine_.stop(); }

  void start(ServiceOptions options = {}) {
    service_ = std::make_unique<Service>(std::move(options));
    service_->serve(served_, {});
  }
  std::unique_ptr<Client> post(const std::string& path, Json body) {
    HttpRequest request{.method = "POST", .path = path, .headers = {{"Content-Type", "application/json"}}};
    request.body = body.dump();
    return std::make_unique<Client>(service_->handle(std::move(request)));
  }
  static Json completion(int64_t max_tokens) {
    return {{"model", "m"},
            {"prompt", {1, 2, 3}},
            {"max_tokens", max_tokens},
            {"ignore_eos", true},
            {"temperature", 0}};
  }
  // Makes the engine's next step hang until the returned lock is released. The engine takes no more requests
  // meanwhile.
  std::unique_lock<std::mutex> hang() {
    std::unique_lock lock(gate_);
    Request request = request_of(prompt_of(4, 1), 1);
    request.logits_sink = [this](int64_t, std::span<const float>) { const std::lock_guard wait(gate_); };
    const auto listener = std::make_shared<Nobody>();
    engine_.submit(std::move(request), listener);
    while (!listener->accepted || engine_.beat().step_started_us == 0) std::this_thread::yield();
    return lock;
  }
  std::unique_ptr<Client> generate(GenerationPlan plan) {
    return std::make_unique<Client>(server::generate(engine_, std::move(plan), flight()));
  }
  std::shared_ptr<InFlight> flight() { return service_->in_flight().begin(context_, 0); }
  // A metric's value.
  double metric(const std::string& name) {
    const auto client = std::make_unique<Client>(service_->handle({.method = "GET", .path = "/metrics"}));
    client->finish();
    const size_t at = client->body.find("\n" + name + " ");
    return at == std::string::npos ? 0 : std::stod(client->body.substr(at + name.size() + 2));
  }

  LoadedModel model_{golden_model("llama_plain", 120)};
  EngineThread engine_{model_.engine()};
  ServedModel served_ = [this] {
    ServedModel model = test_model(model_.text(), &engine_);
    model.max_model_len = model_.engine().max_model_len();
    model.vocab = 128;
    return model;
  }();
  std::mutex gate_;
  std::unique_ptr<Service> service_;
  const std::shared_ptr<RequestContext> context_ = std::make_shared<RequestContext>();
};

TEST_F(ServiceTest, ACompletionIsAnsweredAndItsStreamSaysTheSame) {
  start();
  const auto whole = post("/v1/completions", completion(5));
  ASSERT_TRUE(whole->finish());
  EXPECT_EQ(whole->head->status, 200) << whole->body;
  EXPECT_EQ(Json::parse(whole->body)["usage"]["completion_tokens"], 5);
  Json body = completion(5);
  body["stream"] = true;
  const auto stream = post("/v1/completions", body);
  ASSERT_TRUE(stream->finish());
  EXPECT_TRUE(stream->head->streamed);
  EXPECT_TRUE(stream->body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ServiceTest, AHangingStepEndsItsRequestsNamesItselfAndPasses) {
  start({.stuck_seconds = 0.2});
  const auto lock = std::make_unique<std::unique_lock<std::mutex>>(hang());
  const auto client = post("/v1/completions", completion(5));
  ASSERT_TRUE(client->finish());
  EXPECT_EQ(client->head->status, 503);
  EXPECT_NE(client->body.find("engine_stuck"), std::string::npos);
  EXPECT_NE(client->body.find("hung for"), std::string::npos);
  EXPECT_EQ(service_->life().report()["status"], "stuck");
  const auto refused = post("/v1/completions", completion(5));
  ASSERT_TRUE(refused->finish());
  EXPECT_EQ(refused->head->status, 503);
  lock->unlock();
  for (int i = 0; i < 100 && service_->life().report()["status"] == "stuck"; ++i)
    std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(service_->life().report()["status"], "degraded");
  const auto again = post("/v1/completions", completion(5));
  ASSERT_TRUE(again->finish());
  EXPECT_EQ(again->head->status, 200) << again->body;
}

TEST_F(ServiceTest, ADeadlineAndAFullQueueAreToldWhileTheEngineIsBusy) {
  start({.max_waiting = 2});
  auto lock = hang();
  Json body = completion(5);
  body["timeout_s"] = 0.05;
  const auto late = post("/v1/completions", body);
  ASSERT_TRUE(late->finish());
  EXPECT_EQ(late->head->status, 504);
  const auto first = post("/v1/completions", completion(5));
  const auto turned_away = post("/v1/completions", completion(5));
  ASSERT_TRUE(turned_away->finish());
  EXPECT_EQ(turned_away->head->status, 503);
  EXPECT_NE(turned_away->body.find("queue_full"), std::string::npos);
  lock.unlock();
  ASSERT_TRUE(first->finish());
  EXPECT_EQ(first->head->status, 200);
}

TEST_F(ServiceTest, AClientThatLeavesIsForgottenWithinAStep) {
  start();
  std::unique_lock lock = hang();
  const auto client = post("/v1/completions", completion(110));
  client->leave();
  lock.unlock();
  for (int i = 0; i < 200 && service_->in_flight().size() > 0; ++i)
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(service_->in_flight().size(), 0);
  EXPECT_LT(engine_.beat().steps, 5);
}

TEST_F(ServiceTest, AnEngineThatFailsEndsItsRequestsAndShows) {
  start();
  Request request = request_of(prompt_of(4, 1), 1);
  request.logits_sink = [](int64_t, std::span<const float>) { throw failed("a device is lost"); };
  engine_.submit(std::move(request), std::make_shared<Nobody>());
  while (!engine_.beat().failed)
    std::this_thread::yield();  // alone in its step: a sink in a team must not throw
  const auto client = post("/v1/completions", completion(110));
  ASSERT_TRUE(client->finish());
  EXPECT_GE(client->head->status, 500);
  for (int i = 0; i < 100 && service_->life().state() != Life::State::failed; ++i)
    std::this_thread::sleep_for(milliseconds(50));
  EXPECT_NE(service_->life().report()["message"].get<std::string>().find("a device is lost"),
            std::string::npos);
}

TEST_F(ServiceTest, AStreamOfSeveralPromptsBeginsWithItsHead) {
  start();
  Json body = completion(5);
  body["prompt"] = {{1, 2, 3}, {4, 5, 6}};
  body["stream"] = true;
  const std::unique_ptr<Exchange> exchange =
      server::generate(engine_, plan_completions(body, served_), flight());
  // The engine has news of the first prompt, and is busy, when the second one comes.
  std::unique_lock<std::mutex> lock;
  exchange->start(HearsOfCopies([&] {
    if (lock || engine_.beat().requests + engine_.beat().steps == 0) return;
    while (engine_.beat().steps == 0) std::this_thread::yield();
    lock = hang();
  }));
  ASSERT_TRUE(lock);
  Exchange::Output early;
  exchange->poll(early);
  EXPECT_FALSE(early.head);
  EXPECT_EQ(early.bytes, "");
  lock.unlock();
  Exchange::Output output;
  const int64_t began = now_us();
  while (!output.done && seconds_since(began) < 30) exchange->poll(output);
  ASSERT_TRUE(output.head);
  EXPECT_TRUE(output.head->streamed);
  EXPECT_TRUE(output.bytes.ends_with("data: [DONE]\n\n"));
}

TEST_F(ServiceTest, AWholeAnswerWaitsForItsClientHoweverLargeItIs) {
  start();
  for (const bool stream : {false, true}) {
    Json body = completion(50);
    body["stream"] = stream;
    GenerationPlan plan = plan_completions(body, served_);
    plan.max_queued_bytes = 1000;
    const auto client = generate(std::move(plan));
    while (engine_.beat().requests > 0) std::this_thread::yield();
    ASSERT_TRUE(client->finish());
    EXPECT_EQ(client->head->status, stream ? 503 : 200) << client->body;
  }
}

TEST_F(ServiceTest, AnAnswerThatIsSatisfiedEndsItsRequestAndKnowsItsUsage) {
  start();
  GenerationPlan plan = plan_completions(completion(110), served_);
  plan.writer = std::make_unique<EasilySatisfied>();
  const auto client = generate(std::move(plan));
  ASSERT_TRUE(client->finish());
  EXPECT_GE(std::stoi(client->body), 4);
  EXPECT_EQ(engine_.beat().requests, 0);
}

TEST_F(ServiceTest, IntervalsAreThoseOfASamplesTokensAndEveryPromptIsCounted) {
  start();
  Json body = completion(5);
  body["prompt"] = {{1, 2, 3}, {4, 5, 6}};
  body["n"] = 2;
  const auto client = generate(plan_completions(body, served_));
  ASSERT_TRUE(client->finish());
  EXPECT_EQ(metric("atom_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(metric("atom_inter_token_seconds_count"), 4 * 4);
  EXPECT_EQ(context_->prompt_tokens, 6);
  EXPECT_EQ(context_->output_tokens, 20);
}

TEST_F(ServiceTest, WithoutAModelEverythingThatNeedsOneSaysSo) {
  service_ = std::make_unique<Service>(ServiceOptions{});
  const auto client = post("/v1/completions", completion(5));
  ASSERT_TRUE(client->finish());
  EXPECT_EQ(client->head->status, 503);
  EXPECT_NE(client->body.find("starting"), std::string::npos);
}

}  // namespace
}  // namespace atom::server
