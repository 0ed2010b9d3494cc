// StoredTensor: where one named tensor lies in a checkpoint file. Plain data, no bytes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace atom {

inline constexpr int kMaxStoredRank = 8;  // a file may hold more dims than a Tensor can; see usable_dtype

struct StoredTensor {
  std::string name;
  std::optional<DType> dtype;  // empty: a type this program does not compute with
  std::string dtype_name;      // as the file spells it
  std::vector<int64_t> shape;  // outermost first; a matrix is [out, in] in every format
  int file = 0;                // index into Checkpoint::files()
  int64_t offset = 0;          // from the start of that file, in bytes
  int64_t bytes = 0;
};

// "bf16 [1024, 64]".
std::string to_string(const StoredTensor& tensor);

// The element type of a tensor that a model wants to use. Throws Error (invalid), naming the tensor, when the
// type is not supported or the rank exceeds kMaxRank.
DType usable_dtype(const StoredTensor& tensor);

// Product of `shape`; empty when a dim is negative or the product exceeds int64.
std::optional<int64_t> shape_elements(const std::vector<int64_t>& shape);

}  // namespace atom
