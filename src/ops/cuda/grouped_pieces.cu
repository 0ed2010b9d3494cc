// Grouped products with weights of MXFP4 in pieces on Hopper, for many rows of x.
#include "ops/cuda/grouped_kernel.h"

namespace atom::ops::gpu_kernels {

void start_grouped_pieces(Stream& stream, const GroupedProduct& product, const void* x, int64_t x_bound,
                          int tile) {
  start_grouped_any<Fp4Pieces>(stream, product, x, x_bound, tile);
}

}  // namespace atom::ops::gpu_kernels
