// The indexer's work on numbers, per instruction set. Plain pointers only.
#pragma once
#include "ops/cpu/attention_job.h"

namespace atom::ops::cpu {

struct IndexKernels {
  // scores[i] = sum over heads of weights[h] * max(0, q_h · keys_i), for n keys of `dim` floats.
  void (*scores)(float* scores, const float* q, const float* weights, int64_t heads, int64_t dim,
                 const float* keys, int64_t n);
  // n stored numbers as floats.
  void (*widen)(float* out, KvType type, const void* stored, int64_t n);
};
extern const IndexKernels kIndexRef, kIndexAvx2, kIndexAvx512;

}  // namespace atom::ops::cpu
