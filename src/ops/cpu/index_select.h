// The sparse-attention indexer on the CPU, and its kernels of each instruction set.
#pragma once
#include "ops/indexer.h"

namespace atom::ops::cpu {

struct IndexKernels {
  // scores[i] = sum over heads of weights[h] * max(0, q_h · keys_i), for n keys of `dim` floats.
  void (*scores)(float* scores, const float* q, const float* weights, int64_t heads, int64_t dim,
                 const float* keys, int64_t n);
  // n values of E4M3 as floats.
  void (*widen)(float* out, const uint8_t* codes, int64_t n);
};
extern const IndexKernels kIndexRef, kIndexAvx2, kIndexAvx512;

void index_store(Stream& stream, const IndexStore& op);
void index_select(Stream& stream, const IndexSelect& op, const IndexKernels& kernels);

// The k positions with the largest of `scores`, ascending; equal scores in favour of the lower position.
// NaN counts as larger or smaller than every number, by its sign bit.
void best_positions(std::span<const float> scores, std::span<int32_t> best);

}  // namespace atom::ops::cpu
