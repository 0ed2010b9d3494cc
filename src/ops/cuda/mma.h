// Tensor cores of Ampere and later as the kernels here use them: 16 x 8 x 16 products of bf16 or f16 with
// float32 sums. Device code only.
#pragma once
#include "ops/gpu/elements.h"

namespace atom::ops::gpu_kernels {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kNone = -1e30f;  // a masked score; finite, so that differences stay numbers

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void load_matrices(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
__device__ inline void load_turned_matrices(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
// c += a b, 16 x 8 x 16.
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Bf16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, F16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// c = a b.
__device__ inline void multiply_fresh(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, F16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}
// Two floats as a pair of halves, the first in the low bits.
__device__ inline uint32_t pack(float low, float high, Bf16) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ inline uint32_t pack(float low, float high, F16) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// Two neighbours in memory.
__device__ inline void store_pair(float* to, float x, float y) { *reinterpret_cast<float2*>(to) = {x, y}; }
__device__ inline void store_pair(Bf16* to, float x, float y) {
  *reinterpret_cast<uint32_t*>(to) = pack(x, y, Bf16{});
}
// Two pairs of bf16, exactly if the products are bf16.
__device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}
// Two E4M3, the first in the low bits, as f16, exactly.
__device__ inline uint32_t widen_pair(uint32_t two) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(two)));
  return halves;
#else
  // As f16, the bits of E4M3 mean 2^-8 of its value.
  const uint32_t bits = (two & 0xFFu) | (two & 0xFF00u) << 8;
  const uint32_t small = (bits << 8 & 0x80008000u) | (bits << 7 & 0x3F803F80u);
  uint32_t halves;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(small), "r"(0x5C005C00u));
  if ((bits & 0x7Fu) == 0x7Fu) halves |= 0x7FFFu;
  if ((bits >> 16 & 0x7Fu) == 0x7Fu) halves |= 0x7FFF0000u;
  return halves;
#endif
}
// The power of two by which numbers are divided to become f16, so that the largest comes between 2^13 and
// 2^14: all that is as large as its 2^-27th keeps its digits.
struct F16Range {
  float factor, divisor;
  __device__ explicit F16Range(float largest) {
    const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 14u), 253u);
    factor = __uint_as_float((267 - exponent) << 23);
    divisor = __uint_as_float((exponent - 13) << 23);
  }
};
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace atom::ops::gpu_kernels
