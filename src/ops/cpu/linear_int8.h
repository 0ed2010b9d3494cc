// Activations in 8-bit blocks: x = d * q with one d per 32 columns, as products with GGUF weights take them.
// One layout for every instruction set; internal linkage, so each file has its own copy of the code.
#pragma once
#include "ops/cpu/dequant_blocks.h"
#include "ops/cpu/linear_kernel.h"

namespace atom::ops {
namespace {

constexpr int kInt8Slice = 512;  // columns are padded with zeros to a multiple of this

// Of one token: q[padded], d[padded / 32], sum32[padded / 32], sum16[padded / 16]; sumN is d times the sum of
// N quants.
struct Int8Layout {
  explicit Int8Layout(int64_t cols) : padded((cols + kInt8Slice - 1) / kInt8Slice * kInt8Slice) {}
  int64_t padded;
  int64_t token_bytes() const { return padded + padded / 32 * 8 + padded / 16 * 4; }
  static const int8_t* q(const std::byte* token) { return reinterpret_cast<const int8_t*>(token); }
  const float* d(const std::byte* token) const { return reinterpret_cast<const float*>(token + padded); }
  const float* sum32(const std::byte* token) const { return d(token) + padded / 32; }
  const float* sum16(const std::byte* token) const { return d(token) + padded / 16; }
};

inline int64_t int8_prepared_bytes(int64_t tokens, int64_t cols) {
  return (tokens + kTokenTile - 1) / kTokenTile * kTokenTile * Int8Layout(cols).token_bytes();
}

inline void round_block(const float* x, int8_t* q, float* d, float* sum32, float* sum16) {
  int32_t most = 0;  // of the magnitudes; as integers they keep their order
  for (int i = 0; i < 32; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, 4);
    bits &= 0x7FFFFFFF;
    most = bits > most ? bits : most;
  }
  float largest;
  std::memcpy(&largest, &most, 4);
  const float inverse = most > 0 ? 127 / largest : 0;
  int32_t sums[2] = {};
  for (int half = 0; half < 2; ++half) {
    for (int i = 16 * half; i < 16 * half + 16; ++i) {
      // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits. An explicit fma,
      // so that all instruction sets and compilers agree on ties.
      const float shifted = __builtin_fmaf(x[i], inverse, 12582912.0f);
      int32_t bits;
      std::memcpy(&bits, &shifted, 4);
      const int32_t value = bits - 0x4B400000;
      q[i] = static_cast<int8_t>(value);
      sums[half] += value;
    }
  }
  *d = largest / 127;
  sum16[0] = *d * static_cast<float>(sums[0]);
  sum16[1] = *d * static_cast<float>(sums[1]);
  *sum32 = *d * static_cast<float>(sums[0] + sums[1]);
}

inline void int8_prepare(const Activations& x, int64_t begin, int64_t end, void* prepared) {
  const Int8Layout layout(x.cols);
  for (int64_t t = begin; t < end; ++t) {
    const float* row = x.data + t * x.stride;
    std::byte* token = static_cast<std::byte*>(prepared) + t * layout.token_bytes();
    auto* q = reinterpret_cast<int8_t*>(token);
    auto* d = reinterpret_cast<float*>(token + layout.padded);
    float *sum32 = d + layout.padded / 32, *sum16 = d + layout.padded / 16;
    std::memset(token + x.cols, 0, static_cast<size_t>(layout.token_bytes() - x.cols));
    for (int64_t b = 0; b < x.cols / 32; ++b) {
      round_block(row + 32 * b, q + 32 * b, d + b, sum32 + b, sum16 + 2 * b);
    }
  }
}

// Calls fn.template operator()<Format>() for a block type.
template <class Fn>
void with_format(DType type, Fn&& fn) {
  switch (type) {
    case DType::q4_0:
      return fn.template operator()<Q4_0>();
    case DType::q4_1:
      return fn.template operator()<Q4_1>();
    case DType::q5_0:
      return fn.template operator()<Q5_0>();
    case DType::q5_1:
      return fn.template operator()<Q5_1>();
    case DType::q8_0:
      return fn.template operator()<Q8_0>();
    case DType::q4_k:
      return fn.template operator()<Q4_K>();
    case DType::q5_k:
      return fn.template operator()<Q5_K>();
    case DType::q6_k:
      return fn.template operator()<Q6_K>();
    default:
      return;  // the op refuses other types
  }
}

}  // namespace
}  // namespace atom::ops
