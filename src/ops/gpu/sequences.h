// The sequences of a step in device memory, and which of them a row belongs to. Device code only.
#pragma once
#include "ops/attention.h"

namespace atom::ops::gpu_kernels {

struct Sequences {
  const AttentionSequence* data;
  int count;
  bool one_row_each;  // a step of decodes: sequence i has row i

  explicit Sequences(const AttentionBatch& batch)
      : data(batch.sequences.data()),
        count(static_cast<int>(batch.sequences.size())),
        one_row_each(batch.tokens == static_cast<int32_t>(batch.sequences.size())) {}

#if defined(__CUDACC__) || defined(__HIPCC__)
  __device__ const AttentionSequence& of_row(int row) const {
    if (one_row_each) return data[row];
    int begin = 0, end = count;  // the last sequence whose first row is not behind `row`
    while (end - begin > 1) {
      const int middle = (begin + end) / 2;
      (data[middle].first_row <= row ? begin : end) = middle;
    }
    return data[begin];
  }
#endif
};

}  // namespace atom::ops::gpu_kernels
