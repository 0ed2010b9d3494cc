// Products with weights of E2M1 on tensor cores.
#include "ops/cuda/packed_kernel.h"

namespace atom::ops::gpu_kernels {

void start_packed_fp4(Stream& stream, const PackedProduct& product, int tile, int64_t real_works) {
  start_packed_any<Fp4>(stream, product, tile, real_works);
}

}  // namespace atom::ops::gpu_kernels
