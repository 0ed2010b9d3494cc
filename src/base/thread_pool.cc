#include "base/thread_pool.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace atom {
namespace {

// Threads of all pools in this process that may spin at once; pools beyond the core count sleep instead.
std::atomic<int> live_threads{0};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads) {
  CHECK(threads >= 1, "threads = {}", threads);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  spins_ = live_threads.fetch_add(size_) + size_ <= cores ? 20000 : 0;
  for (int member = 1; member < size_; ++member) {
    members_.emplace_back([this, member] { member_loop(member); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& member : members_) member.join();
  live_threads.fetch_sub(size_);
}

void ThreadPool::run_erased(Job job, void* fn) {
  if (size_ == 1) return job(fn, 0, 1);
  job_ = job;
  fn_ = fn;
  pending_.store(size_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  job(fn, 0, size_);
  for (int i = 0; i < spins_ && pending_.load(std::memory_order_acquire) != 0; ++i) relax();
  for (int32_t left; (left = pending_.load(std::memory_order_acquire)) != 0;) pending_.wait(left);
}

void ThreadPool::member_loop(int member) {
  uint32_t seen = 0;
  for (;;) {
    for (int i = 0; i < spins_ && epoch_.load(std::memory_order_acquire) == seen; ++i) relax();
    epoch_.wait(seen, std::memory_order_acquire);
    ++seen;
    if (stop_.load()) return;
    job_(fn_, member, size_);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

}  // namespace atom
