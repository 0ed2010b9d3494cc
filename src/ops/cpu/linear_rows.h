// Drivers: split an op's rows among the threads and let a RowKernel compute the pieces.
#pragma once
#include "ops/cpu/linear_kernel.h"
#include "ops/linear.h"

namespace atom::ops {

void run_rows(Stream& stream, const RowKernel& kernel, const Linear& op);
void run_rows(Stream& stream, const RowKernel& kernel, const GatedUp& op);
// Rows [begin, begin + rows) of a part as a job without activations but x.cols.
RowJob job_of(const WeightPart& part, int64_t begin, int64_t rows);
// The products of a group.
void run_rows(Stream& stream, const RowKernel& kernel, std::span<const Linear> ops);
void run_rows(Stream& stream, const RowKernel& kernel, std::span<const GatedUp> ops);

// Memory of this thread that only grows; valid until the next call with the same slot. Aligned to a page.
std::byte* thread_scratch(int slot, int64_t bytes);
enum ScratchSlot : int {
  kPreparedScratch,
  kKernelScratch,
  kGateScratch,
  kComposedScratch,
  kExpertScratch,
  kScratchSlots
};

}  // namespace atom::ops
