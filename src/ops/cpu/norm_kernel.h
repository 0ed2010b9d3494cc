// The RMS norm row for any vector type. Included once per instruction set, after its Simd.
#pragma once
#include <cstdint>

namespace {

void norm_row(float* out, float* x, const float* add, const float* weight, int64_t n, float eps,
              float weight_offset) {
  constexpr int kLanes = Simd::kLanes;
  Simd::Reg squares[4] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) {
      Simd::Reg v = Simd::load(x + i + k * kLanes);
      if (add != nullptr) {
        v = Simd::add(v, Simd::load(add + i + k * kLanes));
        Simd::store(x + i + k * kLanes, v);
      }
      squares[k] = Simd::fma(v, v, squares[k]);
    }
  }
  for (; i < n; i += kLanes) {
    const int64_t count = n - i < kLanes ? n - i : kLanes;
    Simd::Reg v = Simd::load_n(x + i, count);
    if (add != nullptr) {
      v = Simd::add(v, Simd::load_n(add + i, count));
      Simd::store_n(x + i, v, count);
    }
    squares[0] = Simd::fma(v, v, squares[0]);
  }
  if (out == nullptr) return;
  const float total =
      Simd::sum(Simd::add(Simd::add(squares[0], squares[1]), Simd::add(squares[2], squares[3])));
  const Simd::Reg scale = Simd::set1(1 / __builtin_sqrtf(total / static_cast<float>(n) + eps));
  const Simd::Reg offset = Simd::set1(weight_offset);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const Simd::Reg w = Simd::add(offset, Simd::load(weight + i));
    Simd::store(out + i, Simd::mul(Simd::mul(Simd::load(x + i), scale), w));
  }
  if (i < n) {
    const Simd::Reg w = Simd::add(offset, Simd::load_n(weight + i, n - i));
    Simd::store_n(out + i, Simd::mul(Simd::mul(Simd::load_n(x + i, n - i), scale), w), n - i);
  }
}

}  // namespace
