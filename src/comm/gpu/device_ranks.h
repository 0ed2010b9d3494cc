// What tests of several ranks with GPUs share: a thread, a queue and memory for each. Where a machine has
// fewer GPUs than ranks, some share one. Skipped on a machine without a GPU.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "comm/device_communicator.h"
#include "tensor/buffer.h"

namespace atom {

// One rank of a test. All memory is taken before any rank begins, and copies are from and to pinned memory:
// whatever else the driver does may wait for kernels, and these for other ranks.
struct DeviceRank {
  DeviceRank(Device device, Communicator& comm)
      : comm(comm),
        queue(device, gpu::Queue::Mode::run, int64_t{1} << 20),
        stream(queue),
        memory(int64_t{128} << 20, device),
        pinned(Buffer::pinned(int64_t{16} << 20)) {}

  Tensor upload(const std::vector<float>& values, std::initializer_list<int64_t> shape) {
    const Tensor t = memory.alloc(DType::f32, shape);
    CHECK(t.elements() == static_cast<int64_t>(values.size()));
    write(t, values);
    return t;
  }
  void write(const Tensor& t, const std::vector<float>& values) {
    queue.wait();  // until the last copy has left the pinned memory
    std::memcpy(pinned.data(), values.data(), static_cast<size_t>(t.bytes()));
    queue.copy_to_device(t.data, pinned.data(), t.bytes());
  }
  std::vector<float> download(const Tensor& t) {
    std::vector<float> values(static_cast<size_t>(t.elements()));
    queue.copy_to_host(pinned.data(), t.data, t.bytes());
    queue.wait();
    std::memcpy(values.data(), pinned.data(), static_cast<size_t>(t.bytes()));
    return values;
  }

  Communicator& comm;
  gpu::Queue queue;
  Stream stream;
  Arena memory;
  Buffer pinned;
};

class DeviceRanks : public testing::Test {
 protected:
  static void SetUpTestSuite() { gpu::expect_waiting_kernels(gpu::Waiting::on_one_device); }
  static void TearDownTestSuite() { gpu::expect_waiting_kernels(gpu::Waiting::nowhere); }
  void SetUp() override {
    if (gpu::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  static std::vector<Device> devices(int n) {
    std::vector<Device> devices;
    for (int r = 0; r < n; ++r)
      devices.push_back({gpu::backend(), static_cast<int8_t>(r % gpu::device_count())});
    return devices;
  }
  // Runs fn on one thread per rank.
  static void on_ranks(int n, Traffic traffic, const std::function<void(DeviceRank&)>& fn) {
    const std::vector<Device> where = devices(n);
    const auto comms = device_communicators(where, traffic);
    std::deque<DeviceRank> ranks;
    for (int r = 0; r < n; ++r) ranks.emplace_back(where[r], *comms[r]);
    std::vector<std::thread> threads;
    for (DeviceRank& rank : ranks) {
      threads.emplace_back([&fn, &rank] {
        rank.queue.activate();
        fn(rank);
        rank.queue.wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace atom
