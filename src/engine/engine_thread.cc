#include "engine/engine_thread.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/log.h"

namespace atom {

EngineThread::EngineThread(Engine& engine)
    : engine_(engine), stats_(engine.stats()), thread_([this] { run(); }) {}

void EngineThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  arrived_.notify_one();
  if (thread_.joinable()) thread_.join();
}

EngineThread::Ticket EngineThread::submit(Request request, std::shared_ptr<RequestListener> listener) {
  const Ticket ticket = next_ticket_.fetch_add(1);
  {
    const std::lock_guard lock(mutex_);
    if (!stop_) {
      requests_.fetch_add(1);
      inbox_size_.fetch_add(1);
      inbox_.push_back(Submission{ticket, std::move(request), std::move(listener)});
    }
  }
  if (listener != nullptr) {  // not queued
    listener->on_failed(failed("the engine has been stopped"));
  } else {
    arrived_.notify_one();
  }
  return ticket;
}

void EngineThread::cancel(Ticket ticket) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.emplace_back(Cancellation{ticket});
  }
  arrived_.notify_one();
}

EngineBeat EngineThread::beat() const { return {steps_, step_started_us_, requests_, failed_}; }

EngineStats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string EngineThread::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

int64_t EngineThread::waiting() const {
  const std::lock_guard lock(mutex_);
  return inbox_size_ + stats_.scheduler.waiting;
}

void EngineThread::run() {
  ::pthread_setname_np(::pthread_self(), "atom-engine");
  try {
    while (take_inbox()) {
      step_started_us_ = now_us();
      engine_.step();
      step_started_us_ = 0;
      ++steps_;
      publish_stats();
    }
    for (const auto& [ticket, active] : active_) engine_.cancel(active.id);
    fail_all(failed("the engine has been stopped"));
  } catch (const std::exception& e) {
    step_started_us_ = 0;
    failed_ = true;
    log_error("the engine has failed in step {}: {}", steps_.load(), e.what());
    {
      const std::lock_guard lock(mutex_);
      failure_ = e.what();
    }
    const Error error = failed("the engine has failed: {}", e.what());
    do {
      fail_all(error);
    } while (take_inbox());  // whoever still comes is told at once
    fail_all(error);
  }
}

bool EngineThread::take_inbox() {
  std::vector<std::variant<Submission, Cancellation>> news;
  {
    std::unique_lock lock(mutex_);
    const bool busy = !failed_ && !engine_.idle();
    arrived_.wait(lock, [&] { return busy || stop_ || !inbox_.empty(); });
    if (stop_) return false;
    news.swap(inbox_);
  }
  for (auto& item : news) {
    if (auto* submission = std::get_if<Submission>(&item)) {
      inbox_size_.fetch_sub(1);
      accept(std::move(*submission));
    } else if (const auto found = active_.find(std::get<Cancellation>(item).ticket); found != active_.end()) {
      if (!failed_) engine_.cancel(found->second.id);
    }
  }
  return true;
}

void EngineThread::accept(Submission&& submission) {
  const Ticket ticket = submission.ticket;
  Active active{-1, std::move(submission.listener), submission.request.n};
  if (failed_) {
    active_.emplace(ticket, std::move(active));  // fail_all() tells it
    return;
  }
  Result<RequestId> id = engine_.submit(std::move(submission.request), [this, ticket](OutputDelta&& delta) {
    const auto found = active_.find(ticket);
    if (found == active_.end()) return;
    const std::shared_ptr<RequestListener> listener = found->second.listener;
    if (delta.finish && --found->second.unfinished == 0) {
      active_.erase(found);
      requests_.fetch_sub(1);
    }
    listener->on_output(std::move(delta));
  });
  if (!id) {
    requests_.fetch_sub(1);
    return active.listener->on_failed(id.error());
  }
  active.id = id.value();
  active.listener->on_accepted();
  active_.emplace(ticket, std::move(active));
}

void EngineThread::publish_stats() {
  EngineStats stats = engine_.stats();
  const std::lock_guard lock(mutex_);
  stats_ = std::move(stats);
}

void EngineThread::fail_all(const Error& error) {
  std::vector<std::variant<Submission, Cancellation>> news;
  {
    const std::lock_guard lock(mutex_);
    news.swap(inbox_);
  }
  for (auto& item : news) {
    if (auto* submission = std::get_if<Submission>(&item)) {
      inbox_size_.fetch_sub(1);
      requests_.fetch_sub(1);
      submission->listener->on_failed(error);
    }
  }
  for (auto& [ticket, active] : active_) {
    requests_.fetch_sub(1);
    active.listener->on_failed(error);
  }
  active_.clear();
}

}  // namespace atom
