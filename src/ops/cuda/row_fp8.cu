// Products of one row with weights of E4M3.
#include "ops/cuda/row_kernel.h"

namespace atom::ops::gpu_kernels {

void start_row_fp8(gpu::Queue& queue, const RowProduct& product) { start_row_any<Fp8>(queue, product); }

}  // namespace atom::ops::gpu_kernels
