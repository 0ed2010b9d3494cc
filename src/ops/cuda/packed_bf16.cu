// Products with weights of bf16 on tensor cores.
#include "ops/cuda/packed_kernel.h"

namespace atom::ops::gpu_kernels {

void start_packed_bf16(Stream& stream, const PackedProduct& product, int tile, int64_t real_works) {
  start_packed_any<Bf16>(stream, product, tile, real_works);
}

}  // namespace atom::ops::gpu_kernels
