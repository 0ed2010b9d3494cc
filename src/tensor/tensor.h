// Tensor: a view of memory with shape, strides, element type and device. It never owns and copies trivially.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "tensor/dtype.h"

namespace atom {

struct Device {
  enum Kind : uint8_t { cpu, cuda, hip };
  Kind kind = cpu;
  int8_t index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr int kMaxRank = 5;

struct Tensor {
  void* data = nullptr;
  std::array<int64_t, kMaxRank> dims{};
  std::array<int64_t, kMaxRank> strides{};  // in elements; the last dim of a block type is contiguous
  uint8_t rank = 0;
  DType dtype = DType::f32;
  Device device;

  explicit operator bool() const { return data != nullptr; }
  // Negative i counts from the end.
  int64_t dim(int i) const { return dims[i < 0 ? rank + i : i]; }
  int64_t elements() const;
  int64_t bytes() const { return dtype_bytes(dtype, elements()); }
  bool contiguous() const;
  std::string to_string() const;  // "bf16 [1024, 64]"

  // Byte address of row r (index of the first dim), whatever the element type.
  std::byte* row_bytes(int64_t r) const {
    return static_cast<std::byte*>(data) + dtype_bytes(dtype, r * strides[0]);
  }
  template <class T>
  T* row(int64_t r) const {
    return reinterpret_cast<T*>(row_bytes(r));
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Views: a range of rows (first dim), a range of columns (last dim; block-aligned for block types).
  Tensor rows(int64_t begin, int64_t count) const;
  Tensor cols(int64_t begin, int64_t count) const;
  // The same elements under another shape; the tensor must be contiguous.
  Tensor reshaped(std::initializer_list<int64_t> shape) const;
};
static_assert(std::is_trivially_copyable_v<Tensor>);

// A contiguous view of `data`.
Tensor make_tensor(void* data, DType dtype, std::span<const int64_t> shape, Device device = {});
inline Tensor make_tensor(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device = {}) {
  return make_tensor(data, dtype, std::span(shape.begin(), shape.size()), device);
}

}  // namespace atom
