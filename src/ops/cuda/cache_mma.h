// Caches of bf16, f16 and E4M3 as factors of tensor-core products. E4M3 becomes f16, which holds all its
// values and which one instruction makes of two. Device code only.
#pragma once
#include "ops/cuda/mma.h"
#include "ops/gpu/cache_elements.h"

namespace atom::ops::gpu_kernels {

template <class Stored>
struct Factor {
  using Type = Stored;
};
template <>
struct Factor<Fp8> {
  using Type = F16;
};
template <class Stored>
using FactorOf = typename Factor<Stored>::Type;

// Four E4M3 as f16, in two instructions: each names its half of the word.
__device__ inline uint2 widen_four(uint32_t four) {
#if __CUDA_ARCH__ >= 890
  uint2 halves;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(halves.x), "=r"(halves.y)
      : "r"(four));
  return halves;
#else
  return {widen_pair(four), widen_pair(four >> 16)};
#endif
}

// 16 values of E4M3 as f16.
__device__ inline void widen_to_halves(const uint4& from, uint4* to) {
  const uint2 a = widen_four(from.x), b = widen_four(from.y), c = widen_four(from.z), d = widen_four(from.w);
  to[0] = {a.x, a.y, b.x, b.y};
  to[1] = {c.x, c.y, d.x, d.y};
}

// Calls fn(element) with a value of the cache's element type, which is not f32.
template <class Fn>
void with_narrow_cache(DType dtype, const Fn& fn) {
  if (dtype == DType::f8e4m3) return fn(Fp8{});
  if (dtype == DType::bf16) return fn(Bf16{});
  CHECK(dtype == DType::f16, "a cache of {}", dtype_name(dtype));
  fn(F16{});
}

}  // namespace atom::ops::gpu_kernels
