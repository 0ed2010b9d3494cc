#include "tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text_util.h"
#include "tensor/gpu.h"

namespace atom {

Buffer::Buffer(int64_t bytes, Device device) : bytes_(bytes), device_(device) {
  CHECK(bytes >= 0, "{}", bytes);
  if (bytes == 0) return;
  if (device.kind != Device::cpu) {
    data_ = gpu::allocate(device, bytes);
    return;
  }
  data_ = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    throw failed("out of memory: {} could not be reserved", format_bytes(bytes));
  }
  if (bytes >= 4 << 20) ::madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);
}

Buffer Buffer::pinned(int64_t bytes) {
  Buffer buffer;
  if (bytes > 0) buffer.data_ = gpu::allocate_pinned(bytes);
  buffer.bytes_ = bytes;
  buffer.pinned_ = true;
  return buffer;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (pinned_) {
    gpu::release_pinned(data_);
  } else if (device_.kind != Device::cpu) {
    gpu::release(device_, data_);
  } else {
    ::munmap(data_, static_cast<size_t>(bytes_));
  }
}

std::byte* Slabs::take(int64_t bytes) {
  constexpr int64_t kSlabBytes = 256 << 20;
  const int64_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (size > left_) {
    left_ = std::max(size, kSlabBytes);
    at_ = static_cast<std::byte*>(buffers_.emplace_back(left_).data());
  }
  left_ -= size;
  return std::exchange(at_, at_ + size);
}

Arena Arena::planning(Device device, int place) {
  Arena arena;
  constexpr int64_t kSpan = int64_t{1} << 50;
  arena.base_ = reinterpret_cast<std::byte*>(place * kSpan + kAlignment);
  arena.capacity_ = kSpan - kAlignment;
  arena.device_ = device;
  return arena;
}

Tensor Arena::alloc(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t = make_tensor(base_ + top_, dtype, shape, device_);
  const int64_t end = top_ + (t.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  CHECK(end <= capacity_, "arena of {} is too small for {} at {}", capacity_, t.to_string(), top_);
  top_ = end;
  peak_ = std::max(peak_, top_);
  return t;
}

void Arena::release(int64_t mark) {
  CHECK(mark >= 0 && mark <= top_, "mark {} top {}", mark, top_);
#ifndef NDEBUG
  if (device_.kind == Device::cpu) std::memset(base_ + mark, 0xFF, static_cast<size_t>(top_ - mark));
#endif
  top_ = mark;
}

}  // namespace atom
