// Weight matrices in device memory as the checkpoint stores them: plain numbers, or E4M3 and E2M1 with scales
// beside them. What kernels are given, and how they read single elements.
#pragma once
#include "ops/gpu/elements.h"
#include "ops/weight.h"

namespace atom::ops::gpu_kernels {

struct Fp8 {  // E4M3
  uint8_t bits;
};
struct Fp4 {};        // E2M1, two in a byte, low four bits first
struct Fp4Pieces {};  // the same in pieces (tensor/mxfp4_pieces.h), which single elements are not read of

template <>
struct Vec<Fp4> {
  static constexpr int kElements = 32;
};
template <>
struct Vec<Fp4Pieces> : Vec<Fp4> {};

// A run of rows. Element (r, c) stands for data(r, c) * scales((r + first_row) / block_rows, (c + first_col)
// / block_cols); plain types have no scales.
struct StoredMatrix {
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
  int64_t stride = 0;        // bytes between rows; in pieces: an eighth of what 8 rows take
  int64_t scale_stride = 0;  // bytes between rows of blocks
  int block_rows = 1, block_cols = 1, first_row = 0, first_col = 0;
};

inline StoredMatrix stored_matrix(const WeightPart& part) {
  StoredMatrix m{.data = static_cast<const std::byte*>(part.data.data),
                 .stride = dtype_bytes(part.data.dtype, part.data.strides[0])};
  if (!part.scale) return m;
  const BlockScales& s = part.scale;
  m.scales = static_cast<const std::byte*>(s.values.data);
  m.scale_stride = dtype_bytes(s.values.dtype, s.values.strides[0]);
  m.block_rows = static_cast<int>(s.block_rows);
  m.block_cols = static_cast<int>(s.block_cols);
  m.first_row = static_cast<int>(s.first_row);
  m.first_col = static_cast<int>(s.first_col);
  return m;
}

// Calls fn(element) with a value of the element type, plain or scaled.
template <class Fn>
void with_stored_element(DType dtype, const Fn& fn) {
  if (dtype == DType::f8e4m3) return fn(Fp8{});
  if (dtype == DType::f4e2m1x2) return fn(Fp4{});
  with_element(dtype, fn);
}

__device__ inline float widen(Fp8 x) {
  const uint32_t magnitude = x.bits & 0x7Fu;
  if (magnitude == 0x7Fu) return NAN;
  const float value = __uint_as_float(magnitude << 20) * 0x1p120f;
  return x.bits & 0x80u ? -value : value;
}
__device__ inline void widen_fp8(uint32_t word, float* out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(word >> 16 * i)));
    out[2 * i] = __half2float(__ushort_as_half(static_cast<uint16_t>(halves)));
    out[2 * i + 1] = __half2float(__ushort_as_half(static_cast<uint16_t>(halves >> 16)));
  }
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = widen(Fp8{static_cast<uint8_t>(word >> 8 * i)});
#endif
}
__device__ inline void widen16(const uint4& raw, float (&out)[16], Fp8) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) widen_fp8(words[i], &out[4 * i]);
}
// The low four bits.
__device__ inline float widen_fp4(uint32_t bits) {
  const float value = __uint_as_float((bits & 7u) << 22) * 0x1p126f;
  return bits & 8u ? -value : value;
}
// E8M0: 2^(bits - 127); 0xFF is NaN.
__device__ inline float widen_e8m0(uint32_t bits) {
  if (bits == 0xFFu) return NAN;
  return __uint_as_float(bits == 0 ? 0x00400000u : bits << 23);
}

// Element (r, c) as it is stored, and its scale.
template <class T>
__device__ inline float stored_element(const StoredMatrix& m, int64_t row, int col, T) {
  return widen(reinterpret_cast<const T*>(m.data + row * m.stride)[col]);
}
__device__ inline float stored_element(const StoredMatrix& m, int64_t row, int col, Fp4) {
  const auto byte = static_cast<uint32_t>(m.data[row * m.stride + col / 2]);
  return widen_fp4(col % 2 == 0 ? byte : byte >> 4);
}
template <class T>
__device__ inline float stored_scale(const StoredMatrix&, int64_t, int, T) {
  return 1;
}
__device__ inline float stored_scale(const StoredMatrix& m, int64_t row, int col, Fp8) {
  const std::byte* scales = m.scales + (row + m.first_row) / m.block_rows * m.scale_stride;
  return reinterpret_cast<const float*>(scales)[(col + m.first_col) / m.block_cols];
}
__device__ inline float stored_scale(const StoredMatrix& m, int64_t row, int col, Fp4) {
  const std::byte* scales = m.scales + (row + m.first_row) / m.block_rows * m.scale_stride;
  return widen_e8m0(static_cast<uint32_t>(scales[(col + m.first_col) / m.block_cols]));
}
template <class T>
__device__ inline float stored_value(const StoredMatrix& m, int64_t row, int col, T element) {
  return stored_element(m, row, col, element) * stored_scale(m, row, col, element);
}

}  // namespace atom::ops::gpu_kernels
