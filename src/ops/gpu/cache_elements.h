// Elements of key/value caches: plain ones and E4M3. Device code only.
#pragma once
#include "ops/gpu/stored.h"

namespace atom::ops::gpu_kernels {

// To the nearest, ties to even; saturates. NaN stays NaN.
__device__ inline void narrow(float x, Fp8& out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  out.bits = static_cast<uint8_t>(pair);
#else
  const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFFu, sign = bits >> 24 & 0x80u;
  uint32_t code;
  if (magnitude > 0x7F800000u) {
    code = 0x7Fu;
  } else if (__uint_as_float(magnitude) >= 448.0f) {
    code = 0x7Eu;
  } else if (__uint_as_float(magnitude) < 0x1p-6f) {  // subnormal: a multiple of 2^-9
    code = static_cast<uint32_t>(rintf(__uint_as_float(magnitude) * 512));
  } else {
    code = (magnitude + 0x7FFFFu + (magnitude >> 20 & 1u) >> 20) - (120u << 3);
  }
  out.bits = static_cast<uint8_t>(sign | code);
#endif
}

// Calls fn(element) with a value of the cache's element type.
template <class Fn>
void with_cache_element(DType dtype, const Fn& fn) {
  if (dtype == DType::f8e4m3) return fn(Fp8{});
  with_element(dtype, fn);
}

}  // namespace atom::ops::gpu_kernels
