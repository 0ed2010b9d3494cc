// Grouped products with weights of E4M3 on Hopper.
#include "ops/cuda/grouped_kernel.h"

namespace atom::ops::gpu_kernels {

void start_grouped_fp8(Stream& stream, const GroupedProduct& product, const void* x, int64_t x_bound,
                       int tile) {
  start_grouped_any<Fp8>(stream, product, x, x_bound, tile);
}

}  // namespace atom::ops::gpu_kernels
