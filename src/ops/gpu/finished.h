// How the blocks of a kernel find out which of them finishes last. Device code only.
#pragma once
#include "ops/gpu/elements.h"

namespace atom::ops::gpu_kernels {

// Adds one to `counter` and returns what it was. What threads wrote that this thread has synchronised with is
// seen, through load_fresh, by threads that synchronise with the one to count after it.
__device__ inline int count_finished(int32_t* counter) {
#if defined(__HIP_PLATFORM_AMD__)
  __threadfence();
  const int before = atomicAdd(counter, 1);
  __threadfence();
  return before;
#else
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
#endif
}

}  // namespace atom::ops::gpu_kernels
