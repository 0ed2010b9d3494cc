// The engine behind its inbox: many threads ask, each hears of its own request, and nothing is left behind.
#include "engine/engine_thread.h"

#include <gtest/gtest.h>

#include "engine/test_requests.h"

namespace atom {
namespace {

using std::chrono::seconds;

class Recorder : public RequestListener {
 public:
  void on_accepted() override {
    const std::lock_guard lock(mutex_);
    accepted = true;
    changed_.notify_all();
  }
  void on_output(OutputDelta&& delta) override {
    const std::lock_guard lock(mutex_);
    ids.insert(ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    if (delta.finish) finish = delta.finish;
    changed_.notify_all();
  }
  void on_failed(const Error& e) override {
    const std::lock_guard lock(mutex_);
    error = e;
    changed_.notify_all();
  }
  // Waits until `done` holds; false after half a minute.
  template <class Done>
  bool wait(Done done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(30), done);
  }
  bool wait_end() {
    return wait([&] { return finish.has_value() || error.has_value(); });
  }

  bool accepted = false;
  std::vector<int32_t> ids;
  std::optional<FinishReason> finish;
  std::optional<Error> error;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

class EngineThreadTest : public testing::Test {
 protected:
  LoadedModel model_{golden_model("llama_plain", 120)};
};

TEST_F(EngineThreadTest, RequestsFromManyThreadsGetTheTokensTheyGetAlone) {
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 8; ++i) {
    std::vector<int32_t> ids;
    model_.engine()
        .submit(request_of(prompt_of(7 + i, i), 12),
                [&](OutputDelta&& d) { ids.insert(ids.end(), d.token_ids.begin(), d.token_ids.end()); })
        .take();
    while (model_.engine().step()) {
    }
    alone.push_back(ids);
  }
  EngineThread engine(model_.engine());
  std::vector<std::shared_ptr<Recorder>> recorders(8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    recorders[i] = std::make_shared<Recorder>();
    threads.emplace_back([&, i] { engine.submit(request_of(prompt_of(7 + i, i), 12), recorders[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(recorders[i]->wait_end());
    EXPECT_EQ(recorders[i]->ids, alone[i]);
    EXPECT_EQ(recorders[i]->finish, FinishReason::length);
  }
  EXPECT_EQ(engine.beat().requests, 0);
}

TEST_F(EngineThreadTest, ARefusedRequestHearsWhyAndNothingElse) {
  EngineThread engine(model_.engine());
  const auto recorder = std::make_shared<Recorder>();
  engine.submit(request_of({100000}, 4), recorder);
  ASSERT_TRUE(recorder->wait_end());
  ASSERT_TRUE(recorder->error.has_value());
  EXPECT_EQ(recorder->error->code(), Errc::invalid);
  EXPECT_FALSE(recorder->accepted);
  EXPECT_EQ(engine.beat().requests, 0);
}

TEST_F(EngineThreadTest, ACancelledRequestEndsAndItsListenerIsLetGo) {
  EngineThread engine(model_.engine());
  const auto recorder = std::make_shared<Recorder>();
  Request request = request_of(prompt_of(8, 1), 100);
  request.n = 4;
  const EngineThread::Ticket ticket = engine.submit(std::move(request), recorder);
  ASSERT_TRUE(recorder->wait([&] { return !recorder->ids.empty(); }));
  engine.cancel(ticket);
  engine.cancel(ticket);
  engine.cancel(12345);
  ASSERT_TRUE(recorder->wait_end());
  EXPECT_EQ(recorder->finish, FinishReason::cancelled);
  engine.stop();
  EXPECT_EQ(recorder.use_count(), 1);
}

TEST_F(EngineThreadTest, StoppingEndsRequestsUnderWayAndLaterOnes) {
  EngineThread engine(model_.engine());
  const auto running = std::make_shared<Recorder>(), late = std::make_shared<Recorder>();
  engine.submit(request_of(prompt_of(8, 1), 110), running);
  engine.stop();
  engine.submit(request_of(prompt_of(8, 1), 4), late);
  ASSERT_TRUE(running->wait_end());
  ASSERT_TRUE(late->wait_end());
  EXPECT_TRUE(late->error.has_value());
  EXPECT_EQ(engine.beat().requests, 0);
}

TEST_F(EngineThreadTest, AHangingStepShowsInTheBeat) {
  EngineThread engine(model_.engine());
  std::mutex gate;
  std::unique_lock closed(gate);
  Request request = request_of(prompt_of(4, 1), 1);
  request.logits_sink = [&](int64_t, std::span<const float>) { const std::lock_guard lock(gate); };
  const auto recorder = std::make_shared<Recorder>();
  engine.submit(std::move(request), recorder);
  ASSERT_TRUE(recorder->wait([&] { return recorder->accepted; }));
  while (engine.beat().step_started_us == 0) std::this_thread::yield();
  const int64_t started = engine.beat().step_started_us;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(engine.beat().step_started_us, started);
  closed.unlock();
  ASSERT_TRUE(recorder->wait_end());
}

TEST_F(EngineThreadTest, AStepThatThrowsFailsEveryoneAndIsToldToLaterRequests) {
  EngineThread engine(model_.engine());
  Request request = request_of(prompt_of(4, 1), 1);
  request.logits_sink = [](int64_t, std::span<const float>) { throw failed("a device is lost"); };
  const auto first = std::make_shared<Recorder>(), second = std::make_shared<Recorder>();
  engine.submit(std::move(request), first);
  ASSERT_TRUE(first->wait_end());
  ASSERT_TRUE(first->error.has_value());
  EXPECT_NE(first->error->message().find("a device is lost"), std::string::npos);
  EXPECT_TRUE(engine.beat().failed);
  engine.submit(request_of(prompt_of(4, 1), 1), second);
  ASSERT_TRUE(second->wait_end());
  EXPECT_TRUE(second->error.has_value());
}

}  // namespace
}  // namespace atom
