// Collectives are kernels over inboxes (exchange.h). Messages are copies: into memory of the receiver's
// device by the sender's queue, out of it by the receiver's, each of which waits for the other's event.
#include "comm/device_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "base/error.h"
#include "comm/gpu/collectives.h"
#include "tensor/buffer.h"

namespace atom {
namespace {

constexpr double kClock = 2e9;  // cycles a second of a fast device

// A point in a queue's work that another queue can wait for.
class Event {
 public:
  // The current device is that of the queues that reach it.
  Event() { GPU_CHECK(GPU(EventCreateWithFlags)(&event_, GPU(EventDisableTiming))); }
  ~Event() { (void)GPU(EventDestroy)(event_); }
  Event(const Event&) = delete;
  void reached_by(gpu::Queue& queue) { GPU_CHECK(GPU(EventRecord)(event_, gpu::native_stream(queue))); }
  // Nothing waits for an event that no queue was told to reach yet.
  void awaited_by(gpu::Queue& queue) const {
    GPU_CHECK(GPU(StreamWaitEvent)(gpu::native_stream(queue), event_, 0));
  }

 private:
  GPU(Event_t) event_;
};

struct Message {
  // Both devices' queues will use it; `sender` is current again afterwards.
  Message(Device sender, Device receiver, int64_t bytes)
      : memory(bytes, receiver), taken(std::make_unique<Event>()) {
    GPU_CHECK(GPU(SetDevice)(sender.index));
    ready = std::make_unique<Event>();
  }
  Buffer memory;  // on the receiver's device
  std::unique_ptr<Event> taken, ready;
  Tensor shape;  // its data pointer is not used
};

// From one rank to another. Messages that were taken are kept for reuse.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<std::unique_ptr<Message>> queue;
  std::vector<std::unique_ptr<Message>> spare;

  // The smallest spare that is large enough, or null.
  std::unique_ptr<Message> take_spare(int64_t bytes) {
    const std::lock_guard lock(mutex);
    size_t best = spare.size();
    for (size_t i = 0; i < spare.size(); ++i) {
      const int64_t room = spare[i]->memory.bytes();
      if (room >= bytes && (best == spare.size() || room < spare[best]->memory.bytes())) best = i;
    }
    if (best == spare.size()) return nullptr;
    std::unique_ptr<Message> message = std::move(spare[best]);
    spare.erase(spare.begin() + static_cast<std::ptrdiff_t>(best));
    return message;
  }
};

struct Group {
  Group(std::span<const Device> of, Traffic traffic, double patience)
      : devices(of.begin(), of.end()), patience(patience), mailboxes(of.size() * of.size()) {
    bool reachable = traffic == Traffic::all;
    for (const Device device : devices) {
      for (const Device peer : devices) reachable = gpu::enable_peer_access(device, peer) && reachable;
    }
    if (traffic != Traffic::messages) make_inboxes(reachable);
  }
  int size() const { return static_cast<int>(devices.size()); }
  Mailbox& mailbox(int from, int to) { return mailboxes[static_cast<size_t>(from * size() + to)]; }

  // Kernels that wait leave half of a device to those that they wait for.
  void make_inboxes(bool on_devices) {
    gpu::Exchange common;
    common.size = size();
    common.blocks = gpu::kMostExchangeBlocks;
    common.patience = static_cast<uint64_t>(patience * kClock);
    for (const Device device : devices) {
      const auto sharers = static_cast<int>(std::count(devices.begin(), devices.end(), device));
      const int processors = gpu::device_info(device).processors;
      common.shares_device = common.shares_device || sharers > 1;
      common.blocks =
          std::min(common.blocks, std::max(1, sharers > 1 ? processors / (2 * sharers) : processors));
    }
    failure = Buffer::pinned(sizeof(gpu::ExchangeFailure));
    common.failure = new (failure.data()) gpu::ExchangeFailure;
    const int64_t bytes = gpu::Exchange::inbox_bytes(common.size, common.blocks);
    for (int r = 0; r < common.size; ++r) {
      inboxes.push_back(on_devices ? Buffer(bytes, devices[r]) : Buffer::pinned(bytes));
      common.inboxes[r] = static_cast<std::byte*>(inboxes.back().data());
      if (on_devices) clear(inboxes.back(), gpu::Exchange::kFlagBytes, devices[r]);
      if (!on_devices) std::memset(common.inboxes[r], 0, gpu::Exchange::kFlagBytes);
    }
    for (int r = 0; r < common.size; ++r) {
      const Buffer& counts = epochs.emplace_back(gpu::kMostExchangeBlocks * int64_t{4}, devices[r]);
      clear(counts, counts.bytes(), devices[r]);
      gpu::Exchange& exchange = exchanges.emplace_back(common);
      exchange.rank = r;
      exchange.epochs = static_cast<uint32_t*>(counts.data());
    }
  }
  static void clear(const Buffer& buffer, int64_t bytes, Device device) {
    GPU_CHECK(GPU(SetDevice)(device.index));
    GPU_CHECK(GPU(Memset)(buffer.data(), 0, static_cast<size_t>(bytes)));
    GPU_CHECK(GPU(DeviceSynchronize)());
  }

  const std::vector<Device> devices;
  const double patience;                 // seconds
  std::vector<gpu::Exchange> exchanges;  // by rank; empty without collectives
  std::deque<Mailbox> mailboxes;
  Buffer failure;
  std::vector<Buffer> inboxes, epochs;
};

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.rank == b.rank && a.dims == b.dims && a.dtype == b.dtype;
}

class GpuCommunicator final : public DeviceCommunicator {
 public:
  GpuCommunicator(std::shared_ptr<Group> group, int rank, std::unique_ptr<Communicator> host)
      : group_(std::move(group)), rank_(rank), host_(std::move(host)) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  const gpu::Exchange& exchange() const override {
    CHECK(!group_->exchanges.empty(), "a collective of an axis that is for messages");
    return group_->exchanges[static_cast<size_t>(rank_)];
  }

  void all_reduce(Stream& stream, Tensor t) override {
    CHECK(t.dtype == DType::f32 && t.contiguous() && t.device == device(), "all_reduce of {}", t.to_string());
    gpu::all_reduce(stream.queue(), exchange(), t.as<float>(), t.elements());
  }

  void all_gather(Stream& stream, Tensor out, Tensor in) override {
    const int64_t total = out.dim(1), n = size();
    CHECK(in.dtype == DType::f32 && out.dtype == DType::f32 && in.rank == 2 && out.rank == 2 &&
              in.dim(0) == out.dim(0) && in.strides[1] == 1 && out.strides[1] == 1 &&
              in.dim(1) == total * (rank_ + 1) / n - total * rank_ / n && in.device == device() &&
              out.device == device(),
          "all_gather of {} into {} by rank {} of {}", in.to_string(), out.to_string(), rank_, n);
    gpu::all_gather(stream.queue(), exchange(), out, in);
  }

  void send(Stream& stream, Tensor t, int to) override {
    if (t.device.kind == Device::cpu) return host_->send(stream, t, to);
    CHECK(to >= 0 && to < size() && to != rank_ && t.contiguous() && t.device == device(),
          "send of {} from rank {} to {} of {}", t.to_string(), rank_, to, size());
    if (stream.queue().planning()) return;
    Mailbox& box = group_->mailbox(rank_, to);
    std::unique_ptr<Message> message = box.take_spare(t.bytes());
    if (message == nullptr) message = new_message(to, t.bytes());
    message->taken->awaited_by(stream.queue());
    copy(stream, message->memory.data(), t.data, t.bytes());
    message->ready->reached_by(stream.queue());
    message->shape = t;
    {
      const std::lock_guard lock(box.mutex);
      box.queue.push_back(std::move(message));
    }
    box.arrived.notify_one();
  }

  void recv(Stream& stream, Tensor t, int from) override {
    if (t.device.kind == Device::cpu) return host_->recv(stream, t, from);
    CHECK(from >= 0 && from < size() && from != rank_ && t.contiguous() && t.device == device(),
          "recv of {} by rank {} from {} of {}", t.to_string(), rank_, from, size());
    if (stream.queue().planning()) return;
    Mailbox& box = group_->mailbox(from, rank_);
    std::unique_ptr<Message> message;
    {
      std::unique_lock lock(box.mutex);
      box.arrived.wait(lock, [&] { return !box.queue.empty(); });
      message = std::move(box.queue.front());
      box.queue.pop_front();
    }
    CHECK(same_shape(message->shape, t), "rank {} sent {}, rank {} expects {}", from,
          message->shape.to_string(), rank_, t.to_string());
    message->ready->awaited_by(stream.queue());
    copy(stream, t.data, message->memory.data(), t.bytes());
    message->taken->reached_by(stream.queue());
    const std::lock_guard lock(box.mutex);
    box.spare.push_back(std::move(message));
  }

  void reserve(int64_t bytes, int to) override {
    Mailbox& box = group_->mailbox(rank_, to);
    std::unique_ptr<Message> message = new_message(to, bytes);
    const std::lock_guard lock(box.mutex);
    box.spare.push_back(std::move(message));
  }

  void rehearse(bool on) override {
    if (!group_->exchanges.empty()) group_->exchanges[static_cast<size_t>(rank_)].rehearsal = on;
  }

  std::string problem() const override {
    if (group_->exchanges.empty()) return "";
    const auto& failure = *static_cast<const gpu::ExchangeFailure*>(group_->failure.data());
    if (failure.happened == 0) return "";
    return fmt::format("a rank waited {} s for rank {}, which did not come", group_->patience, failure.peer);
  }

 private:
  Device device() const { return group_->devices[static_cast<size_t>(rank_)]; }
  std::unique_ptr<Message> new_message(int to, int64_t bytes) const {
    return std::make_unique<Message>(device(), group_->devices[static_cast<size_t>(to)], bytes);
  }
  // Between any two devices, or within one.
  static void copy(Stream& stream, void* to, const void* from, int64_t bytes) {
    if (bytes == 0) return;
    GPU_CHECK(GPU(MemcpyAsync)(to, from, static_cast<size_t>(bytes), GPU(MemcpyDefault),
                               gpu::native_stream(stream.queue())));
  }

  std::shared_ptr<Group> group_;
  const int rank_;
  std::unique_ptr<Communicator> host_;  // for host memory
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> device_communicators(std::span<const Device> devices,
                                                                Traffic traffic, double patience) {
  const auto n = static_cast<int>(devices.size());
  CHECK(n >= 1);
  if (traffic != Traffic::messages && n > gpu::kMostRanks)
    throw invalid("{} GPUs: at most {} can share a layer", n, gpu::kMostRanks);
  auto group = std::make_shared<Group>(devices, traffic, patience);
  auto hosts = in_process_communicators(n);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < n; ++r)
    ranks.push_back(std::make_unique<GpuCommunicator>(group, r, std::move(hosts[static_cast<size_t>(r)])));
  return ranks;
}

}  // namespace atom
