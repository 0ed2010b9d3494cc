#include "tensor/tensor.h"

namespace atom {

int64_t Tensor::elements() const {
  int64_t n = rank == 0 ? 0 : 1;
  for (int i = 0; i < rank; ++i) n *= dims[i];
  return n;
}

bool Tensor::contiguous() const {
  int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (dims[i] != 1 && strides[i] != expected) return false;
    expected *= dims[i];
  }
  return true;
}

std::string Tensor::to_string() const {
  std::string text = std::string(dtype_name(dtype)) + " [";
  for (int i = 0; i < rank; ++i) text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  return text + "]";
}

Tensor Tensor::rows(int64_t begin, int64_t count) const {
  CHECK(rank >= 1 && begin >= 0 && count >= 0 && begin + count <= dims[0], "rows {}+{} of {}", begin, count,
        to_string());
  Tensor t = *this;
  t.data = row_bytes(begin);
  t.dims[0] = count;
  return t;
}

Tensor Tensor::cols(int64_t begin, int64_t count) const {
  const int last = rank - 1;
  const int64_t block = dtype_info(dtype).block;
  CHECK(rank >= 1 && begin >= 0 && count >= 0 && begin + count <= dims[last], "cols {}+{} of {}", begin,
        count, to_string());
  CHECK(begin % block == 0 && count % block == 0, "cols {}+{} of {}", begin, count, to_string());
  Tensor t = *this;
  t.data = static_cast<std::byte*>(data) + dtype_bytes(dtype, begin);
  t.dims[last] = count;
  return t;
}

Tensor Tensor::reshaped(std::initializer_list<int64_t> shape) const {
  CHECK(contiguous(), "{}", to_string());
  Tensor t = make_tensor(data, dtype, shape, device);
  CHECK(t.elements() == elements(), "{} as {}", to_string(), t.to_string());
  return t;
}

Tensor make_tensor(void* data, DType dtype, std::span<const int64_t> shape, Device device) {
  CHECK(shape.size() <= kMaxRank, "rank {}", shape.size());
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.device = device;
  t.rank = static_cast<uint8_t>(shape.size());
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.dims[i] = shape[i];
    t.strides[i] = stride;
    stride *= shape[i];
  }
  return t;
}

}  // namespace atom
