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

// 16 values of E4M3 as f16.
__device__ inline void widen_to_halves(const uint4& from, uint4* to) {
  to[0] = {widen_pair(from.x), widen_pair(from.x >> 16), widen_pair(from.y), widen_pair(from.y >> 16)};
  to[1] = {widen_pair(from.z), widen_pair(from.z >> 16), widen_pair(from.w), widen_pair(from.w >> 16)};
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
