// Grouped products with weights of E2M1 on Hopper.
#include "ops/cuda/grouped_kernel.h"

namespace atom::ops::gpu_kernels {

void start_grouped_fp4(Stream& stream, const GroupedProduct& product, const void* x, int64_t x_bound,
                       int tile) {
  if (product.half == Half::f16) return start_grouped_any<Fp4, F16>(stream, product, x, x_bound, tile);
  start_grouped_any<Fp4, Bf16>(stream, product, x, x_bound, tile);
}

}  // namespace atom::ops::gpu_kernels
