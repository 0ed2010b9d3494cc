// Owners of memory, on the host or a device. Buffer: one allocation (weights, pools). Arena: bump memory of
// one step's activations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace atom {

inline constexpr int64_t kAlignment = 64;  // bytes; every allocation and arena tensor starts on it

// One allocation, returned to the system when destroyed. On the host it is page-backed anonymous memory, zero
// at first; memory of a device has any content.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes, Device device = {});
  // Host memory that a GPU copies from and to directly.
  static Buffer pinned(int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
    std::swap(pinned_, other.pinned_);
    return *this;
  }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_;
  bool pinned_ = false;
};

// Memory for many tensors in few buffers of `buffers`: large pages serve small ones too, and the number of
// maps stays small. Pages are taken when they are written.
class Slabs {
 public:
  explicit Slabs(std::vector<Buffer>& buffers) : buffers_(buffers) {}
  std::byte* take(int64_t bytes);

 private:
  std::vector<Buffer>& buffers_;
  std::byte* at_ = nullptr;
  int64_t left_ = 0;
};

// Same call sequence and sizes give the same addresses. Debug builds fill released host memory with NaN.
class Arena {
 public:
  explicit Arena(int64_t bytes, Device device = {})
      : buffer_(bytes, device),
        base_(static_cast<std::byte*>(buffer_.data())),
        capacity_(bytes),
        device_(device) {}
  // Without memory: hands out addresses that nobody may follow, to learn the peak of a step on `device`.
  // Those of arenas with different `place` (0 to 3) never meet; all lie below 2^52.
  static Arena planning(Device device, int place = 0);
  Tensor alloc(DType dtype, std::initializer_list<int64_t> shape);
  int64_t mark() const { return top_; }
  void release(int64_t mark);
  int64_t peak_bytes() const { return peak_; }
  int64_t capacity_bytes() const { return capacity_; }

 private:
  Arena() = default;

  Buffer buffer_;
  std::byte* base_ = nullptr;
  int64_t capacity_ = 0;
  Device device_;
  int64_t top_ = 0;
  int64_t peak_ = 0;
};

// Releases what was allocated in a scope.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  int64_t mark_;
};

}  // namespace atom
