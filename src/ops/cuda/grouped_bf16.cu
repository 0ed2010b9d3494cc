// Grouped products with weights of bf16 on Hopper.
#include "ops/cuda/grouped_kernel.h"

namespace atom::ops::gpu_kernels {

void start_grouped_bf16(Stream& stream, const GroupedProduct& product, const void* x, int64_t x_bound,
                        int tile) {
  start_grouped_any<Bf16>(stream, product, x, x_bound, tile);
}

}  // namespace atom::ops::gpu_kernels
