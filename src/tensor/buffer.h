// Owners of memory. Buffer: one allocation (weights, pools). Arena: bump memory of one step's activations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "tensor/tensor.h"

namespace atom {

inline constexpr int64_t kAlignment = 64;  // bytes; every allocation and arena tensor starts on it

// Page-backed anonymous memory, zero at first, returned to the system when destroyed.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Same call sequence and sizes give the same addresses. Debug builds fill released memory with NaN.
class Arena {
 public:
  explicit Arena(int64_t bytes) : buffer_(bytes) {}
  Tensor alloc(DType dtype, std::initializer_list<int64_t> shape);
  int64_t mark() const { return top_; }
  void release(int64_t mark);
  int64_t peak_bytes() const { return peak_; }
  int64_t capacity_bytes() const { return buffer_.bytes(); }

 private:
  Buffer buffer_;
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
