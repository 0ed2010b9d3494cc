#include "server/in_flight.h"

#include "base/clock.h"
#include "server/metrics.h"

namespace atom::server {

InFlight::InFlight(InFlightTable& table, std::shared_ptr<RequestContext> context)
    : table_(table), context_(std::move(context)), submitted_us_(now_us()) {}

InFlight::~InFlight() {
  const std::lock_guard lock(table_.mutex_);
  table_.all_.erase(this);
  const auto count = table_.per_key_.find(context_->key);
  if (--count->second == 0) table_.per_key_.erase(count);
}

void InFlight::on_tokens(int64_t tokens, int64_t& last_us) {
  const int64_t now = now_us();
  if (context_->output_tokens.fetch_add(tokens) == 0) {
    table_.metrics_.first_token(static_cast<double>(now - submitted_us_) * 1e-6);
  }
  if (last_us != 0) table_.metrics_.next_tokens(static_cast<double>(now - last_us) * 1e-6, tokens);
  last_us = now;
}

void InFlight::on_finish(FinishReason reason, const Usage& usage, bool first_of_prompt) {
  if (first_of_prompt) context_->prompt_tokens += usage.prompt_tokens;
  table_.metrics_.finished(reason, usage);
}

void InFlight::end_with(const ApiError& error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
  if (wake_) wake_();
}

std::optional<ApiError> InFlight::ended_with() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void InFlight::set_wake(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

std::shared_ptr<InFlight> InFlightTable::begin(std::shared_ptr<RequestContext> context, int64_t max_per_key) {
  const std::lock_guard lock(mutex_);
  int64_t& count = per_key_[context->key];
  if (max_per_key > 0 && count >= max_per_key) {
    throw ApiError(
        429, "concurrency_limit_exceeded",
        fmt::format("this API key has {} requests under way, as many as it may; wait for one to end", count));
  }
  ++count;
  std::shared_ptr<InFlight> flight(new InFlight(*this, std::move(context)));
  all_.insert(flight.get());
  return flight;
}

int64_t InFlightTable::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(all_.size());
}

int64_t InFlightTable::end_all(const ApiError& error) {
  const std::lock_guard lock(mutex_);
  for (InFlight* flight : all_) flight->end_with(error);
  return static_cast<int64_t>(all_.size());
}

}  // namespace atom::server
