// Norm, rope and cache store of one head, for any vector type. Included once per instruction set, after its
// Simd.
#pragma once
#include "ops/cpu/rope_head.h"
#include "tensor/small_floats.h"

namespace {

using atom::ops::cpu::HeadTransform;
using atom::ops::cpu::KvType;
constexpr int kLanes = Simd::kLanes;

// out = in / sqrt(mean(in²) + eps) * (offset + norm).
void norm_head(float* out, const float* in, const HeadTransform& head) {
  const int64_t n = head.head_dim;
  Simd::Reg squares = Simd::zero();
  for (int64_t d = 0; d < n; d += kLanes) {
    const Simd::Reg x = Simd::load_n(in + d, n - d < kLanes ? n - d : kLanes);
    squares = Simd::fma(x, x, squares);
  }
  const float mean = Simd::sum(squares) / static_cast<float>(n);
  const Simd::Reg scale = Simd::set1(1 / __builtin_sqrtf(mean + head.eps));
  const Simd::Reg offset = Simd::set1(head.weight_offset);
  for (int64_t d = 0; d < n; d += kLanes) {
    const int64_t count = n - d < kLanes ? n - d : kLanes;
    const Simd::Reg weight = Simd::add(offset, Simd::load_n(head.norm + d, count));
    Simd::store_n(out + d, Simd::mul(Simd::mul(Simd::load_n(in + d, count), scale), weight), count);
  }
}

// Pairs (i, i + half).
void rotate_halves(float* out, const float* in, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t count = half - i < kLanes ? half - i : kLanes;
    const Simd::Reg x = Simd::load_n(in + i, count), y = Simd::load_n(in + half + i, count);
    const Simd::Reg c = Simd::load_n(cos + i, count), s = Simd::load_n(sin + i, count);
    Simd::store_n(out + i, Simd::fms(x, c, Simd::mul(y, s)), count);
    Simd::store_n(out + half + i, Simd::fma(y, c, Simd::mul(x, s)), count);
  }
}

// Pairs (2i, 2i + 1).
void rotate_pairs(float* out, const float* in, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes / 2 <= half; i += kLanes / 2) {
    const Simd::Reg x = Simd::load(in + 2 * i);
    const Simd::Reg crossed = Simd::mul(Simd::swap_pairs(x), Simd::load_twice(sin + i));
    Simd::store(out + 2 * i, Simd::fma_sub_add(x, Simd::load_twice(cos + i), crossed));
  }
  for (; i < half; ++i) {
    const float x = in[2 * i], y = in[2 * i + 1];
    out[2 * i] = x * cos[i] - y * sin[i];
    out[2 * i + 1] = y * cos[i] + x * sin[i];
  }
}

void transform_head(float* out, const float* in, const HeadTransform& head) {
  if (head.norm != nullptr) {
    norm_head(out, in, head);
    in = out;
  }
  const int64_t rotated = head.cos == nullptr ? 0 : head.rotary_dim;
  if (rotated > 0 && head.interleaved) rotate_pairs(out, in, head.cos, head.sin, rotated / 2);
  if (rotated > 0 && !head.interleaved) rotate_halves(out, in, head.cos, head.sin, rotated / 2);
  if (in != out) __builtin_memcpy(out + rotated, in + rotated, (head.head_dim - rotated) * sizeof(float));
}

void store_kv(KvType type, void* out, const float* in, int64_t n) {
  if (type == KvType::f32) {
    __builtin_memcpy(out, in, n * sizeof(float));
    return;
  }
  if (type == KvType::f8e4m3) {
    for (int64_t d = 0; d < n; ++d) static_cast<uint8_t*>(out)[d] = atom::f32_to_f8e4m3(in[d]);
    return;
  }
  auto* to = static_cast<uint16_t*>(out);
  const auto convert = type == KvType::bf16 ? Simd::store_bf16 : Simd::store_f16;
  int64_t d = 0;
  for (; d + kLanes <= n; d += kLanes) convert(to + d, Simd::load(in + d));
  if (d == n) return;
  uint16_t rest[kLanes];
  convert(rest, Simd::load_n(in + d, n - d));
  __builtin_memcpy(to + d, rest, (n - d) * sizeof(uint16_t));
}

}  // namespace
