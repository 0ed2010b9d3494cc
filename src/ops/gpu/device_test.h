// What the tests of GPU entries share: the same data on both sides, and the comparison of every entry with
// the CPU's reference. Skipped on a machine without a GPU.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/op.h"
#include "tensor/buffer.h"
#include "tensor/small_floats.h"

namespace atom::ops {

// The same tensor on the host and on the device.
struct Twin {
  Tensor host, device;
};

class GpuOps : public testing::Test {
 protected:
  static constexpr int64_t kScratch = int64_t{64} << 20;

  void SetUp() override {
    if (gpu::device_count() == 0) GTEST_SKIP() << "no GPU";
    device_ = {gpu::backend(), 0};
    queue_ = std::make_unique<gpu::Queue>(device_, gpu::Queue::Mode::run, kScratch);
    gpu_.emplace(*queue_);
  }

  std::vector<float> normals(int64_t n, float spread = 1) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = normal(rng_);
    return values;
  }

  void* upload(const void* data, int64_t bytes) {
    Buffer& buffer = buffers_.emplace_back(std::max<int64_t>(bytes, 16), device_);
    queue_->copy_to_device(buffer.data(), data, bytes);
    queue_->wait();
    return buffer.data();
  }
  Twin twin(const std::vector<float>& values, DType dtype, std::initializer_list<int64_t> shape) {
    auto& bytes = memory_.emplace_back(
        static_cast<size_t>(dtype_bytes(dtype, static_cast<int64_t>(values.size()))) + 1);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t half = dtype == DType::bf16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
      if (dtype == DType::f32) std::memcpy(&bytes[4 * i], &values[i], 4);
      if (dtype == DType::bf16 || dtype == DType::f16) std::memcpy(&bytes[2 * i], &half, 2);
      if (dtype == DType::f8e4m3) bytes[i] = std::byte{f32_to_f8e4m3(values[i])};
    }
    const Tensor host = make_tensor(bytes.data(), dtype, shape);
    return {host, make_tensor(upload(bytes.data(), host.bytes()), dtype, shape, device_)};
  }
  Twin nans(std::initializer_list<int64_t> shape) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return twin(std::vector<float>(static_cast<size_t>(n), std::nanf("")), DType::f32, shape);
  }
  Twin random(std::initializer_list<int64_t> shape, DType dtype = DType::f32, float spread = 1) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return twin(normals(n, spread), dtype, shape);
  }
  template <class T>
  std::span<const T> upload_span(const std::vector<T>& values) {
    return {static_cast<const T*>(upload(values.data(), static_cast<int64_t>(values.size() * sizeof(T)))),
            values.size()};
  }

  // The bytes of a contiguous device tensor.
  std::vector<std::byte> bytes_of(const Tensor& t) {
    std::vector<std::byte> bytes(static_cast<size_t>(t.bytes()));
    queue_->copy_to_host(bytes.data(), t.data, t.bytes());
    queue_->wait();
    return bytes;
  }
  std::vector<float> floats_of(const Tensor& t) {
    const auto bytes = bytes_of(t);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  void reset(const Twin& t) { queue_->copy_to_device(t.device.data, t.host.data, t.host.bytes()); }

  // ‖device - host‖ / ‖host‖; NaN if either has one.
  double error_of(const Twin& out) {
    const auto got = floats_of(out.device);
    double difference = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = out.host.as<float>()[i];
      difference += (got[i] - want) * (got[i] - want);
      size += want * want;
    }
    return std::sqrt(difference / std::max(size, 1e-30));
  }

  // Runs the CPU's reference on `host`, then each GPU entry that takes `device`, and compares `out`. Entries
  // that round activations may err by `rounded`.
  template <class Op>
  void expect_entries_agree(const Op& host, const Op& device, const Twin& out, double exact, double rounded,
                            const std::string& what, int least_entries = 1) {
    impls<Op>().back().run(cpu_, host);
    check(device);
    int entries = 0;
    for (const Impl<Op>& impl : gpu_impls<Op>()) {
      if (impl.refuse(*gpu_, device) != nullptr) continue;
      ++entries;
      const std::vector<float> poison(static_cast<size_t>(out.device.elements()), std::nanf(""));
      queue_->copy_to_device(out.device.data, poison.data(), out.device.bytes());
      queue_->wait();
      impl.run(*gpu_, device);
      const std::string_view name = impl.name;
      const bool rounds = name.ends_with("cublaslt") || name.ends_with("mma");
      EXPECT_LT(error_of(out), rounds ? rounded : exact) << impl.name << " " << what;
    }
    EXPECT_GE(entries, least_entries) << what;
  }

  Device device_;
  std::unique_ptr<gpu::Queue> queue_;
  std::optional<Stream> gpu_;
  ThreadPool pool_{2};
  Stream cpu_{pool_};
  std::mt19937 rng_{7};
  std::deque<std::vector<std::byte>> memory_;
  std::deque<Buffer> buffers_;
};

}  // namespace atom::ops
