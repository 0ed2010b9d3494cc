#include "checkpoint/stored_tensor.h"

#include <fmt/format.h>

#include "base/error.h"
#include "tensor/tensor.h"

namespace atom {

std::string to_string(const StoredTensor& tensor) {
  return fmt::format("{} [{}]", tensor.dtype ? dtype_name(*tensor.dtype) : tensor.dtype_name.c_str(),
                     fmt::join(tensor.shape, ", "));
}

DType usable_dtype(const StoredTensor& tensor) {
  if (!tensor.dtype) {
    throw invalid("tensor {}: element type {} is not supported; convert the checkpoint to bfloat16",
                  tensor.name, tensor.dtype_name);
  }
  if (tensor.shape.size() > static_cast<size_t>(kMaxRank)) {
    throw invalid("tensor {}: {} dims, at most {} are supported", tensor.name, tensor.shape.size(), kMaxRank);
  }
  return *tensor.dtype;
}

std::optional<int64_t> shape_elements(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  bool overflow = false, empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    if (dim == 0) {
      empty = true;
      continue;
    }
    overflow |= __builtin_mul_overflow(product, dim, &product);
  }
  if (overflow) return std::nullopt;
  return empty ? 0 : product;
}

}  // namespace atom
