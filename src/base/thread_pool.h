// A fixed team of threads for data-parallel work of microseconds. The caller is member 0 of the team.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace atom {

class ThreadPool {
 public:
  // `threads` members in all, the caller included; at least 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Runs fn(member, members) once on every member and returns when all have finished. fn must not throw.
  // One caller at a time; not reentrant.
  template <class Fn>
  void run(Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    run_erased([](void* f, int member, int members) { (*static_cast<F*>(f))(member, members); },
               const_cast<std::remove_const_t<F>*>(&fn));
  }

  // Runs fn(begin, end) over [0, n) in chunks of at most `grain`, dealt to whichever member is free.
  template <class Fn>
  void parallel_for(int64_t n, int64_t grain, Fn&& fn) {
    if (n <= 0) return;
    if (size_ == 1 || n <= grain) return fn(int64_t{0}, n);
    std::atomic<int64_t> next{0};
    run([&](int, int) {
      for (;;) {
        const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= n) return;
        fn(begin, begin + grain < n ? begin + grain : n);
      }
    });
  }

 private:
  using Job = void (*)(void* fn, int member, int members);
  void run_erased(Job job, void* fn);
  void member_loop(int member);

  int size_;
  int spins_;  // polls before a member sleeps; 0 when the machine has fewer cores than threads
  std::vector<std::thread> members_;
  Job job_ = nullptr;
  void* fn_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};   // incremented to start a job
  alignas(64) std::atomic<int32_t> pending_{0};  // members still working on it
  std::atomic<bool> stop_{false};
};

}  // namespace atom
