// Times all-reduces of two ranks on GPUs, as a recorded graph replays them: microseconds each and the rate at
// which numbers leave a device. Usage: all_reduce_bench [device of rank 0] [device of rank 1]
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

#include "comm/device_communicator.h"
#include "tensor/buffer.h"

namespace {

using namespace atom;

constexpr int kCalls = 100;  // in a graph
constexpr int kReplays = 10;

struct Rank {
  Rank(Device device, Communicator& comm, int64_t bytes)
      : comm(comm), queue(device, gpu::Queue::Mode::run), memory(bytes, device) {}
  Communicator& comm;
  gpu::Queue queue;
  Buffer memory;
};

// Seconds of one call, best of some replays.
double time_calls(Rank& rank, int64_t count) {
  rank.queue.activate();
  Stream stream(rank.queue);
  const Tensor t = make_tensor(rank.memory.data(), DType::f32, {count}, rank.queue.device());
  rank.queue.zero(t.data, t.bytes());
  rank.queue.begin_recording();
  for (int i = 0; i < kCalls; ++i) rank.comm.all_reduce(stream, t);
  const auto graph = rank.queue.end_recording();
  double best = 1e9;
  for (int i = 0; i < kReplays; ++i) {
    rank.queue.wait();
    const auto begin = std::chrono::steady_clock::now();
    rank.queue.start(*graph);
    rank.queue.wait();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best / kCalls;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Device> devices;
  for (int r = 0; r < 2; ++r)
    devices.push_back({gpu::backend(), static_cast<int8_t>(argc > r + 1 ? std::atoi(argv[r + 1]) : r)});
  gpu::expect_waiting_kernels(devices[0] == devices[1] ? gpu::Waiting::on_one_device
                                                       : gpu::Waiting::across_devices);
  constexpr int64_t kMost = int64_t{1} << 24;
  const auto comms = device_communicators(devices, Traffic::all);
  std::deque<Rank> ranks;
  for (int r = 0; r < 2; ++r) ranks.emplace_back(devices[r], *comms[r], kMost * 4);
  for (const int64_t count : {int64_t{4096}, int64_t{8192}, int64_t{32} * 4096, int64_t{1} << 20, kMost}) {
    double seconds[2];
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) threads.emplace_back([&, r] { seconds[r] = time_calls(ranks[r], count); });
    for (std::thread& thread : threads) thread.join();
    const double slower = std::max(seconds[0], seconds[1]);
    fmt::print("{:9} bytes  {:8.2f} us  {:7.1f} GB/s\n", count * 4, slower * 1e6,
               static_cast<double>(count) * 4e-9 / slower);
  }
}
