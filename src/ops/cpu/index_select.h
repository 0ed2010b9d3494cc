// The sparse-attention indexer on the CPU, and its score kernels of each instruction set.
#pragma once
#include "ops/indexer.h"

namespace atom::ops::cpu {

// scores[i] = sum over heads of weights[h] * max(0, q_h · keys_i), for n keys of `dim` floats.
using IndexScores = void (*)(float* scores, const float* q, const float* weights, int64_t heads, int64_t dim,
                             const float* keys, int64_t n);
void index_scores_ref(float* scores, const float* q, const float* weights, int64_t heads, int64_t dim,
                      const float* keys, int64_t n);
void index_scores_avx2(float* scores, const float* q, const float* weights, int64_t heads, int64_t dim,
                       const float* keys, int64_t n);
void index_scores_avx512(float* scores, const float* q, const float* weights, int64_t heads, int64_t dim,
                         const float* keys, int64_t n);

void index_store(Stream& stream, const IndexStore& op);
void index_select(Stream& stream, const IndexSelect& op, IndexScores scores);

// The k positions with the largest of `scores`, ascending; equal scores in favour of the lower position.
// NaN counts as larger or smaller than every number, by its sign bit.
void best_positions(std::span<const float> scores, std::span<int32_t> best);

}  // namespace atom::ops::cpu
