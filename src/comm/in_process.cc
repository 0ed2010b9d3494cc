// Ranks that are threads of one process. Collectives exchange tensor addresses, meet at a barrier, and work
// directly on each other's memory; point-to-point messages are copied into a queue per ordered pair of ranks.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "comm/communicator.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace atom {
namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// All n threads meet, any number of times. Spins only where every rank can have a core of its own.
class Barrier {
 public:
  explicit Barrier(int n)
      : n_(n), spins_(n <= static_cast<int>(std::thread::hardware_concurrency()) ? 4000 : 0) {}

  void wait() {
    const uint32_t generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == n_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.fetch_add(1, std::memory_order_release);
      generation_.notify_all();
      return;
    }
    for (int i = 0; i < spins_; ++i) {
      if (generation_.load(std::memory_order_acquire) != generation) return;
      relax();
    }
    generation_.wait(generation, std::memory_order_acquire);
  }

 private:
  const int n_;
  const int spins_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

struct Message {
  std::vector<std::byte> bytes;
  Tensor shape;  // its data pointer is not used
};

// What rank `from` has sent to rank `to` and is not yet received. Emptied buffers are kept for reuse.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<Message> queue;
  std::vector<std::vector<std::byte>> spare;
};

struct Group {
  explicit Group(int n) : size(n), barrier(n), in(n), mailboxes(static_cast<size_t>(n) * n) {}
  Mailbox& mailbox(int from, int to) { return mailboxes[static_cast<size_t>(from) * size + to]; }

  const int size;
  Barrier barrier;
  std::vector<Tensor> in;  // what each rank brings to the current collective
  std::deque<Mailbox> mailboxes;
};

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.rank == b.rank && a.dims == b.dims && a.dtype == b.dtype;
}

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->size; }

  void all_reduce(Stream&, Tensor t) override {
    CHECK(t.dtype == DType::f32 && t.contiguous(), "all_reduce of {}", t.to_string());
    Group& g = *group_;
    g.in[rank_] = t;
    g.barrier.wait();
    for (int r = 0; r < g.size; ++r) {
      CHECK(same_shape(g.in[r], t), "all_reduce of {} on rank {} and {} on rank {}", t.to_string(), rank_,
            g.in[r].to_string(), r);
    }
    // This rank sums one slice of everybody's tensor, in rank order, and hands the result to everybody.
    const int64_t n = t.elements();
    const int64_t begin = n * rank_ / g.size, end = n * (rank_ + 1) / g.size;
    constexpr int64_t kChunk = 1024;
    float sum[kChunk];
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t count = std::min(kChunk, end - at);
      std::memcpy(sum, g.in[0].as<float>() + at, static_cast<size_t>(count) * sizeof(float));
      for (int r = 1; r < g.size; ++r) {
        const float* in = g.in[r].as<float>() + at;
        for (int64_t i = 0; i < count; ++i) sum[i] += in[i];
      }
      for (int r = 0; r < g.size; ++r) {
        std::memcpy(g.in[r].as<float>() + at, sum, static_cast<size_t>(count) * sizeof(float));
      }
    }
    g.barrier.wait();
  }

  void all_gather(Stream&, Tensor out, Tensor in) override {
    CHECK(in.dtype == DType::f32 && out.dtype == DType::f32 && in.rank == 2 && out.rank == 2 &&
              in.dim(0) == out.dim(0) && in.strides[1] == 1 && out.strides[1] == 1,
          "all_gather of {} into {}", in.to_string(), out.to_string());
    Group& g = *group_;
    g.in[rank_] = in;
    g.barrier.wait();
    int64_t cols = 0;
    for (const Tensor& part : g.in) {
      CHECK(part.dim(0) == in.dim(0), "all_gather of {} rows on rank {}, {} on another", in.dim(0), rank_,
            part.dim(0));
      cols += part.dim(1);
    }
    CHECK(cols == out.dim(1), "all_gather of {} columns in all into {}", cols, out.to_string());
    for (int64_t row = 0; row < out.dim(0); ++row) {
      float* to = out.row<float>(row);
      for (const Tensor& part : g.in) {
        std::memcpy(to, part.row<float>(row), static_cast<size_t>(part.dim(1)) * sizeof(float));
        to += part.dim(1);
      }
    }
    g.barrier.wait();
  }

  void send(Stream&, Tensor t, int to) override {
    CHECK(to >= 0 && to < size() && to != rank_ && t.contiguous(), "send of {} from rank {} to {} of {}",
          t.to_string(), rank_, to, size());
    Mailbox& box = group_->mailbox(rank_, to);
    Message message;
    {
      std::lock_guard lock(box.mutex);
      if (!box.spare.empty()) {
        message.bytes = std::move(box.spare.back());
        box.spare.pop_back();
      }
    }
    const std::byte* data = t.as<const std::byte>();
    message.bytes.assign(data, data + t.bytes());
    message.shape = t;
    {
      std::lock_guard lock(box.mutex);
      box.queue.push_back(std::move(message));
    }
    box.arrived.notify_one();
  }

  void recv(Stream&, Tensor t, int from) override {
    CHECK(from >= 0 && from < size() && from != rank_ && t.contiguous(),
          "recv of {} by rank {} from {} of {}", t.to_string(), rank_, from, size());
    Mailbox& box = group_->mailbox(from, rank_);
    Message message;
    {
      std::unique_lock lock(box.mutex);
      box.arrived.wait(lock, [&] { return !box.queue.empty(); });
      message = std::move(box.queue.front());
      box.queue.pop_front();
    }
    CHECK(same_shape(message.shape, t), "rank {} sent {}, rank {} expects {}", from,
          message.shape.to_string(), rank_, t.to_string());
    if (!message.bytes.empty()) std::memcpy(t.data, message.bytes.data(), message.bytes.size());
    std::lock_guard lock(box.mutex);
    box.spare.push_back(std::move(message.bytes));
  }

 private:
  std::shared_ptr<Group> group_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> in_process_communicators(int n) {
  CHECK(n >= 1, "{} ranks", n);
  auto group = std::make_shared<Group>(n);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < n; ++r) ranks.push_back(std::make_unique<InProcessCommunicator>(group, r));
  return ranks;
}

}  // namespace atom
