// Element types as kernels see them: one struct per stored type, conversions to and from float, and the
// dispatch from a DType. Device code only.
#pragma once
#include "tensor/gpu/vendor.h"

namespace atom::ops::gpu_kernels {

using namespace atom::gpu;

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(Bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ inline float widen(F16 x) { return __half2float(__ushort_as_half(x.bits)); }

// Round to nearest even; NaN stays NaN.
__device__ inline uint16_t bf16_bits(float x) {
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(u >> 16 | 0x40u);
  return static_cast<uint16_t>((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}
__device__ inline void narrow(float x, float& out) { out = x; }
__device__ inline void narrow(float x, Bf16& out) { out.bits = bf16_bits(x); }
__device__ inline void narrow(float x, F16& out) { out.bits = __half_as_ushort(__float2half_rn(x)); }

// 16 bytes of stored elements.
template <class T>
struct Vec {
  static constexpr int kElements = 16 / sizeof(T);
};

// Widens 16 bytes.
__device__ inline void widen16(const uint4& raw, float (&out)[4], float) {
  out[0] = __uint_as_float(raw.x);
  out[1] = __uint_as_float(raw.y);
  out[2] = __uint_as_float(raw.z);
  out[3] = __uint_as_float(raw.w);
}
__device__ inline void widen16(const uint4& raw, float (&out)[8], Bf16) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}
__device__ inline void widen16(const uint4& raw, float (&out)[8], F16) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = widen(F16{static_cast<uint16_t>(words[i])});
    out[2 * i + 1] = widen(F16{static_cast<uint16_t>(words[i] >> 16)});
  }
}

template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
  return x;
}

inline bool is_plain(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

// Calls fn(element) with a value of the element type; dtype must be plain.
template <class Fn>
void with_element(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::f32:
      return fn(float{});
    case DType::bf16:
      return fn(Bf16{});
    case DType::f16:
      return fn(F16{});
    default:
      CHECK(false, "no GPU kernel for {}", dtype_name(dtype));
  }
}

inline bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace atom::ops::gpu_kernels
