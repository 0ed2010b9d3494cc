#include "tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text_util.h"

namespace atom {

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  CHECK(bytes >= 0, "{}", bytes);
  if (bytes == 0) return;
  data_ = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    throw failed("out of memory: {} could not be reserved", format_bytes(bytes));
  }
  if (bytes >= 4 << 20) ::madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);
}

Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

Tensor Arena::alloc(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t = make_tensor(static_cast<std::byte*>(buffer_.data()) + top_, dtype, shape);
  const int64_t end = top_ + (t.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  CHECK(end <= buffer_.bytes(), "arena of {} is too small for {} at {}", buffer_.bytes(), t.to_string(),
        top_);
  top_ = end;
  peak_ = std::max(peak_, top_);
  return t;
}

void Arena::release(int64_t mark) {
  CHECK(mark >= 0 && mark <= top_, "mark {} top {}", mark, top_);
#ifndef NDEBUG
  std::memset(static_cast<std::byte*>(buffer_.data()) + mark, 0xFF, static_cast<size_t>(top_ - mark));
#endif
  top_ = mark;
}

}  // namespace atom
