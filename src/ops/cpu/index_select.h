// The sparse-attention indexer on the CPU.
#pragma once
#include "ops/cpu/index_kernels.h"
#include "ops/indexer.h"

namespace atom::ops::cpu {

void index_store(Stream& stream, const IndexStore& op);
void index_select(Stream& stream, const IndexSelect& op, const IndexKernels& kernels);

// The k positions with the largest of `scores`, ascending; equal scores in favour of the lower position.
// NaN counts as larger or smaller than every number, by its sign bit.
void best_positions(std::span<const float> scores, std::span<int32_t> best);

}  // namespace atom::ops::cpu
