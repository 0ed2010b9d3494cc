// The delta rule of one head for any vector type. Included once per instruction set, after its Simd.
//
// Columns of the state do not depend on each other, so a stripe of columns is taken through all tokens while
// it stays in the first-level cache. One pass over it gives both S^T k and S^T q; the output follows without
// another: (g S + k u^T)^T q = g S^T q + (k . q) u.
#pragma once
#include <cstdint>

#include "ops/cpu/delta_rows.h"

namespace {

using atom::ops::cpu::DeltaHead;

// kRegs vectors of columns from `column` on; of the last one only `last` lanes.
template <int kRegs>
void delta_stripe(const DeltaHead& h, const float* kq, int64_t column, int64_t last) {
  using Reg = Simd::Reg;
  constexpr int kLanes = Simd::kLanes;
  const auto load = [&](const float* p, int r) {
    return r + 1 < kRegs ? Simd::load(p + r * kLanes) : Simd::load_n(p + r * kLanes, last);
  };
  const auto store = [&](float* p, int r, Reg x) {
    r + 1 < kRegs ? Simd::store(p + r * kLanes, x) : Simd::store_n(p + r * kLanes, x, last);
  };
  for (int64_t t = 0; t < h.tokens; ++t) {
    const float* q = h.q + t * h.k_dim;
    const float* k = h.k + t * h.k_dim;
    Reg sk[kRegs], sq[kRegs], u[kRegs];
    for (int r = 0; r < kRegs; ++r) sk[r] = sq[r] = Simd::zero();
    const float* s = h.state + column;
    for (int64_t i = 0; i < h.k_dim; ++i, s += h.v_dim) {
      const Reg ki = Simd::set1(k[i]), qi = Simd::set1(q[i]);
      for (int r = 0; r < kRegs; ++r) {
        const Reg x = load(s, r);
        sk[r] = Simd::fma(x, ki, sk[r]);
        sq[r] = Simd::fma(x, qi, sq[r]);
      }
    }
    const Reg decay = Simd::set1(h.decay[t]), beta = Simd::set1(h.beta[t]), mix = Simd::set1(kq[t]);
    for (int r = 0; r < kRegs; ++r) {
      const Reg v = load(h.v + t * h.v_stride + column, r);
      u[r] = Simd::mul(beta, Simd::sub(v, Simd::mul(decay, sk[r])));
      store(h.out + t * h.out_stride + column, r, Simd::fma(mix, u[r], Simd::mul(decay, sq[r])));
    }
    float* to = h.state + column;
    for (int64_t i = 0; i < h.k_dim; ++i, to += h.v_dim) {
      const Reg ki = Simd::set1(k[i]);
      for (int r = 0; r < kRegs; ++r) store(to, r, Simd::fma(ki, u[r], Simd::mul(decay, load(to, r))));
    }
  }
}

void delta_head(const DeltaHead& h) {
  constexpr int kLanes = Simd::kLanes;
  float kq[atom::ops::cpu::kDeltaChunk];
  for (int64_t t = 0; t < h.tokens; ++t) {
    Simd::Reg sum = Simd::zero();
    for (int64_t i = 0; i < h.k_dim; i += kLanes) {
      const int64_t n = h.k_dim - i < kLanes ? h.k_dim - i : kLanes;
      sum = Simd::fma(Simd::load_n(h.q + t * h.k_dim + i, n), Simd::load_n(h.k + t * h.k_dim + i, n), sum);
    }
    kq[t] = Simd::sum(sum);
  }
  int64_t column = 0;
  for (; column + 4 * kLanes <= h.v_dim; column += 4 * kLanes) delta_stripe<4>(h, kq, column, kLanes);
  for (; column < h.v_dim; column += kLanes) {
    delta_stripe<1>(h, kq, column, h.v_dim - column < kLanes ? h.v_dim - column : kLanes);
  }
}

}  // namespace
