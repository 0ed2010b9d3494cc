// Gives every parameter of a rank its value: views into the mapped checkpoint, copies of it, or dummy values.
#pragma once
#include <functional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "nn/scope.h"
#include "tensor/buffer.h"

namespace atom {

struct LoadOptions {
  bool mmap = true;      // matrices stay in the mapped files; false: they are read into memory
  bool populate = true;  // mapped files are read now; false: by whoever comes first
  bool values = true;    // false: shapes and types alone matter; matrices hold anything
  int threads = 16;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes; called from one thread at a time
};

// Owns what was copied. Mapped parts live as long as the Checkpoint.
struct Weights {
  std::vector<Buffer> buffers;
  int64_t bytes = 0;  // all parameters of this rank, mapped or not
};

// Throws Error for a tensor that is missing or wrong, before anything is read.
Weights load_weights(ModelTables& tables, const Checkpoint& checkpoint, const LoadOptions& options);

// Random matrices of type `dtype` with unit-variance products, norms of one, biases of zero; the same on
// every run.
Weights dummy_weights(ModelTables& tables, DType dtype, const LoadOptions& options);

}  // namespace atom
