// Independent jobs on a team of threads that lives as long as they take.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace atom {

// Runs the jobs on up to `threads` threads; the first exception is rethrown.
template <class Job, class Fn>
void run_jobs(const std::vector<Job>& jobs, int threads, const Fn& fn) {
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < jobs.size();) {
      try {
        fn(jobs[i]);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = jobs.size();
      }
    }
  };
  std::vector<std::thread> team;
  const int helpers = std::min<int>(threads, static_cast<int>(jobs.size())) - 1;
  for (int i = 0; i < helpers; ++i) team.emplace_back(work);
  work();
  for (std::thread& t : team) t.join();
  if (error) std::rethrow_exception(error);
}

// Tells how much of `total` is done; from one thread at a time.
class JobProgress {
 public:
  using Report = std::function<void(int64_t done, int64_t total)>;
  JobProgress(const Report& report, int64_t total) : report_(report), total_(total) {}
  void add(int64_t amount) {
    if (!report_) return;
    const std::lock_guard lock(mutex_);
    done_ += amount;
    report_(done_, total_);
  }

 private:
  const Report& report_;
  const int64_t total_;
  std::mutex mutex_;
  int64_t done_ = 0;
};

}  // namespace atom
