// Products of one row with weights of bf16.
#include "ops/cuda/row_kernel.h"

namespace atom::ops::gpu_kernels {

void start_row_bf16(gpu::Queue& queue, const RowProduct& product) { start_row_any<Bf16>(queue, product); }

}  // namespace atom::ops::gpu_kernels
