// Products of one row with weights of MXFP4 in pieces.
#include "ops/cuda/row_kernel.h"

namespace atom::ops::gpu_kernels {

void start_row_pieces(gpu::Queue& queue, const RowProduct& product) { start_row_any<Fp4Pieces>(queue, product); }

}  // namespace atom::ops::gpu_kernels
