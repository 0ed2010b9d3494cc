// Products of one row with weights of E2M1.
#include "ops/cuda/row_kernel.h"

namespace atom::ops::gpu_kernels {

void start_row_fp4(gpu::Queue& queue, const RowProduct& product) { start_row_any<Fp4>(queue, product); }

}  // namespace atom::ops::gpu_kernels
