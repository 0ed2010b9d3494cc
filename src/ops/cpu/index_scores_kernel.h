// The indexer's scores, and its keys widened, for any vector type. Included once per instruction set, after
// its Simd.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/attention_job.h"

namespace {

void index_scores(float* scores, const float* q, const float* weights, int64_t heads, int64_t dim,
                  const float* keys, int64_t n) {
  constexpr int kLanes = Simd::kLanes, kHeads = 4;
  for (int64_t i = 0; i < n; ++i) {
    const float* key = keys + i * dim;
    float score = 0;
    int64_t h = 0;
    for (; h + kHeads <= heads; h += kHeads) {
      Simd::Reg acc[kHeads] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
      int64_t d = 0;
      for (; d + kLanes <= dim; d += kLanes) {
        const Simd::Reg k = Simd::load(key + d);
        for (int j = 0; j < kHeads; ++j) acc[j] = Simd::fma(k, Simd::load(q + (h + j) * dim + d), acc[j]);
      }
      if (d < dim) {
        const Simd::Reg k = Simd::load_n(key + d, dim - d);
        for (int j = 0; j < kHeads; ++j) {
          acc[j] = Simd::fma(k, Simd::load_n(q + (h + j) * dim + d, dim - d), acc[j]);
        }
      }
      for (int j = 0; j < kHeads; ++j) score += weights[h + j] * std::max(0.0f, Simd::sum(acc[j]));
    }
    for (; h < heads; ++h) {
      Simd::Reg acc = Simd::zero();
      for (int64_t d = 0; d < dim; d += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, dim - d);
        acc = Simd::fma(Simd::load_n(key + d, count), Simd::load_n(q + h * dim + d, count), acc);
      }
      score += weights[h] * std::max(0.0f, Simd::sum(acc));
    }
    scores[i] = score;
  }
}

// `load` makes a vector of so many numbers.
template <class T, class Load>
void widen_with(float* out, const T* stored, int64_t n, const Load& load) {
  constexpr int kLanes = Simd::kLanes;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Simd::store(out + i, load(stored + i));
  if (i == n) return;
  T last[kLanes] = {};
  std::memcpy(last, stored + i, static_cast<size_t>(n - i) * sizeof(T));
  Simd::store_n(out + i, load(last), n - i);
}

void widen_keys(float* out, atom::ops::cpu::KvType type, const void* stored, int64_t n) {
  using atom::ops::cpu::KvType;
  const auto* halves = static_cast<const uint16_t*>(stored);
  switch (type) {
    case KvType::f32:
      std::memcpy(out, stored, static_cast<size_t>(n) * sizeof(float));
      return;
    case KvType::bf16:
      return widen_with(out, halves, n, Simd::load_bf16);
    case KvType::f16:
      return widen_with(out, halves, n, Simd::load_f16);
    case KvType::f8e4m3:
      return widen_with(out, static_cast<const uint8_t*>(stored), n, [](const uint8_t* codes) {
        return Simd::mul(Simd::load_f8e4m3(codes), Simd::set1(1 / Simd::kF8Unit));
      });
  }
}

}  // namespace
