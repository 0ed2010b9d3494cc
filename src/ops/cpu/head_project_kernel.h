// The row kernels of per-head products for any vector type. Included once per instruction set, after its
// Simd.
#pragma once
#include <algorithm>
#include <cstdint>

namespace {

void combine(float* out, const float* x, const float* w, int64_t rows, int64_t cols, bool add) {
  constexpr int kLanes = Simd::kLanes, kRegs = 4;
  int64_t c = 0;
  for (; c + kRegs * kLanes <= cols; c += kRegs * kLanes) {
    Simd::Reg acc[kRegs];
    for (int k = 0; k < kRegs; ++k) acc[k] = add ? Simd::load(out + c + k * kLanes) : Simd::zero();
    for (int64_t r = 0; r < rows; ++r) {
      const Simd::Reg factor = Simd::set1(x[r]);
      for (int k = 0; k < kRegs; ++k) {
        acc[k] = Simd::fma(factor, Simd::load(w + r * cols + c + k * kLanes), acc[k]);
      }
    }
    for (int k = 0; k < kRegs; ++k) Simd::store(out + c + k * kLanes, acc[k]);
  }
  for (; c < cols; c += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, cols - c);
    Simd::Reg acc = add ? Simd::load_n(out + c, n) : Simd::zero();
    for (int64_t r = 0; r < rows; ++r)
      acc = Simd::fma(Simd::set1(x[r]), Simd::load_n(w + r * cols + c, n), acc);
    Simd::store_n(out + c, acc, n);
  }
}

void dots(float* out, const float* x, const float* w, int64_t rows, int64_t cols) {
  constexpr int kLanes = Simd::kLanes, kRows = 4;
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    Simd::Reg acc[kRows] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
    int64_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      const Simd::Reg v = Simd::load(x + c);
      for (int k = 0; k < kRows; ++k) acc[k] = Simd::fma(v, Simd::load(w + (r + k) * cols + c), acc[k]);
    }
    if (c < cols) {
      const Simd::Reg v = Simd::load_n(x + c, cols - c);
      for (int k = 0; k < kRows; ++k)
        acc[k] = Simd::fma(v, Simd::load_n(w + (r + k) * cols + c, cols - c), acc[k]);
    }
    for (int k = 0; k < kRows; ++k) out[r + k] = Simd::sum(acc[k]);
  }
  for (; r < rows; ++r) {
    Simd::Reg acc = Simd::zero();
    for (int64_t c = 0; c < cols; c += kLanes) {
      const int64_t n = std::min<int64_t>(kLanes, cols - c);
      acc = Simd::fma(Simd::load_n(x + c, n), Simd::load_n(w + r * cols + c, n), acc);
    }
    out[r] = Simd::sum(acc);
  }
}

}  // namespace
