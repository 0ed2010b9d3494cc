// Flash attention of one job in float32, for any vector type. Included once per instruction set, after its
// Simd.
//   s = q·k,  m' = max(m, max s),  p = 2^(c s - m'),  acc = acc 2^(m - m') + p v,  sum likewise;
// with c = scale * log2(e). Keys are taken in tiles of kAttentionTile, query vectors in blocks of 4, 2 or 1,
// so that a decode step streams each key and value once for all heads of the group, and a prefill reuses them
// from the cache. Keys that a row must not see get -inf before the maximum; slots outside the job are never
// read.
#pragma once
#include "ops/cpu/attention_softmax.h"

namespace {

template <class T>
inline void prefetch_row(const T* row, int64_t dims) {
  for (int64_t d = 0; d < dims; d += 64 / static_cast<int64_t>(sizeof(T))) {
    _mm_prefetch(reinterpret_cast<const char*>(row + d), _MM_HINT_T0);
  }
}

// scores[g][t] = q[g]·k[t] for t < n rounded up to kLanes. `ahead` rows are fetched meanwhile.
template <class T, int G>
void score_block(const float* q, int64_t stride, const T* const* k, int32_t n, int64_t dims, float* scores,
                 const T* const* ahead) {
  constexpr int kKeys = kLanes / G;
  for (int32_t t = 0; t < n; t += kKeys) {
    if (ahead != nullptr) {
      for (int i = 0; i < kKeys; ++i) prefetch_row(ahead[t + i], dims);
    }
    Reg sum[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) sum[i] = Simd::zero();
    for (int64_t d = 0; d < dims; d += kLanes) {
      Reg qv[G];
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) qv[g] = Simd::load(q + g * stride + d);
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i) {
        const Reg key = load_kv(k[t + i] + d);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) sum[g * kKeys + i] = Simd::fma(qv[g], key, sum[g * kKeys + i]);
      }
    }
    alignas(64) float lanes[kLanes];
    Simd::store(lanes, Simd::sums(sum));
    for (int g = 0; g < G; ++g) {
      __builtin_memcpy(scores + g * kAttentionTile + t, lanes + g * kKeys, kKeys * sizeof(float));
    }
  }
}

// acc[g][d0 ...] = factors[g] * acc[g][d0 ...] + p[g][t] * v[t][d0 ...] over C vectors of dims.
template <class T, int G, int C>
void value_columns(const float* p, const float* factors, const T* const* v, int32_t n, int64_t d0, float* acc,
                   int64_t stride) {
  Reg a[G][C];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      a[g][c] = Simd::mul(Simd::set1(factors[g]), Simd::load(acc + g * stride + d0 + c * kLanes));
    }
  }
  for (int32_t t = 0; t < n; ++t) {
    Reg value[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) value[c] = load_kv(v[t] + d0 + c * kLanes);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const Reg weight = Simd::set1(p[g * kAttentionTile + t]);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) a[g][c] = Simd::fma(weight, value[c], a[g][c]);
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) Simd::store(acc + g * stride + d0 + c * kLanes, a[g][c]);
  }
}

template <class T, int G>
void value_block(const float* p, const float* factors, const T* const* v, int32_t n, int64_t dims, float* acc,
                 int64_t stride, const T* const* ahead) {
  constexpr int kColumns = G == 1 ? 8 : kLanes / G;  // vectors of dims at a time: as many as registers allow
  int64_t d = 0;
  if (ahead != nullptr) {
    for (int32_t t = 0; t < n; ++t) prefetch_row(ahead[t], dims);
  }
  for (; d + kColumns * kLanes <= dims; d += kColumns * kLanes) {
    value_columns<T, G, kColumns>(p, factors, v, n, d, acc, stride);
  }
  for (; d + 2 * kLanes <= dims; d += 2 * kLanes) value_columns<T, G, 2>(p, factors, v, n, d, acc, stride);
  if (d < dims) value_columns<T, G, 1>(p, factors, v, n, d, acc, stride);
}

// Vectors [first, first + G) of the job against one tile. `next` is fetched for the tile after, if not null.
template <class T, int G>
void attend_block(const AttentionJob& job, const float* q, int32_t first, const Tile<T>& tile, int64_t dims,
                  float* scores, const Tile<T>* next) {
  const int64_t stride = attention_stride(job.head_dim);
  const int64_t top = job.first_position + first / job.group;
  const int64_t bottom = job.first_position + (first + G - 1) / job.group;
  const int32_t n = visible(job, bottom, tile.first, tile.n).hi;
  const int32_t lo = visible(job, top, tile.first, tile.n).lo;
  if (n <= lo) return;
  score_block<T, G>(q + first * stride, stride, tile.k, n, dims, scores, next != nullptr ? tile.v : nullptr);
  alignas(64) float factors[32];
  const int32_t width = (n + kLanes - 1) / kLanes * kLanes;
  softmax_rows(job, first, G, tile.first, n, width, scores, factors,
               [scores](int32_t r, int32_t t, Reg p) { Simd::store(scores + r * kAttentionTile + t, p); });
  value_block<T, G>(scores, factors, tile.v, n, dims, job.acc + first * stride, stride,
                    next != nullptr && next->n == kAttentionTile ? next->k : nullptr);
}

template <class T>
void attend_tile(const AttentionJob& job, const float* q, const Tile<T>& tile, int64_t dims, float* scores,
                 const Tile<T>* next) {
  const int32_t vectors = job.vectors();
  int32_t v = 0;
  for (; v + 4 <= vectors; v += 4) attend_block<T, 4>(job, q, v, tile, dims, scores, v == 0 ? next : nullptr);
  if (v + 2 <= vectors) {
    attend_block<T, 2>(job, q, v, tile, dims, scores, v == 0 ? next : nullptr);
    v += 2;
  }
  if (v < vectors) attend_block<T, 1>(job, q, v, tile, dims, scores, v == 0 ? next : nullptr);
}

inline void widen(const float* from, int64_t n, float* to) { __builtin_memcpy(to, from, n * sizeof(float)); }
template <class T>
void widen(const T* from, int64_t n, float* to) {
  int64_t d = 0;
  for (; d + kLanes <= n; d += kLanes) Simd::store(to + d, load_kv(from + d));
  if (d == n) return;
  T rest[kLanes] = {};
  __builtin_memcpy(rest, from + d, (n - d) * sizeof(T));
  alignas(64) float wide[kLanes];
  Simd::store(wide, load_kv(rest));
  __builtin_memcpy(to + d, wide, (n - d) * sizeof(float));
}

// Copies the query vectors side by side, padded with zeros.
void copy_queries(const AttentionJob& job, float* q) {
  const int64_t stride = attention_stride(job.head_dim);
  for (int32_t v = 0; v < job.vectors(); ++v, q += stride) {
    __builtin_memcpy(q, job.query(v), job.head_dim * sizeof(float));
    __builtin_memset(q + job.head_dim, 0, (stride - job.head_dim) * sizeof(float));
  }
}

template <class T>
void attend(const AttentionJob& job) {
  const int64_t stride = attention_stride(job.head_dim);
  const int64_t dims = (job.head_dim + kLanes - 1) / kLanes * kLanes;
  float* q = job.scratch;
  float* wide = q + (job.vectors() + 31) / 32 * 32 * stride;  // a tile of keys, then of values, as float32
  float* scores = wide + 2 * kAttentionTile * stride;
  copy_queries(job, q);
  clear_results(job);
  // Rows that are not whole vectors, and narrow ones that are used often, are widened once per tile.
  const bool widened = dims != job.head_dim || (sizeof(T) < sizeof(float) && job.vectors() > 16);
  Tile<T> tiles[2];
  locate(job, job.begin, tiles[0]);
  for (int at = 0; tiles[at].n > 0; at ^= 1) {
    const Tile<T>& tile = tiles[at];
    Tile<T>& next = tiles[at ^ 1];
    locate(job, tile.first + kAttentionTile, next);
    if (!widened) {
      attend_tile(job, q, tile, dims, scores, &next);
      continue;
    }
    Tile<float> copy;
    copy.first = tile.first;
    copy.n = tile.n;
    for (int32_t t = 0; t < kAttentionTile; ++t) {
      const int32_t from = t < tile.n ? t : tile.n - 1;
      float* k = wide + from * stride;
      float* v = wide + (kAttentionTile + from) * stride;
      copy.k[t] = k;
      copy.v[t] = v;
      if (t != from) continue;
      widen(tile.k[t], job.head_dim, k);
      widen(tile.v[t], job.head_dim, v);
      for (int64_t d = job.head_dim; d < dims; ++d) k[d] = v[d] = 0;
    }
    attend_tile<float>(job, q, copy, dims, scores, nullptr);
  }
}

void attend_any(const AttentionJob& job) {
  switch (job.type) {
    case KvType::f32:
      return attend<float>(job);
    case KvType::bf16:
      return attend<Bf16>(job);
    case KvType::f16:
      return attend<F16>(job);
    case KvType::f8e4m3:
      return attend<F8>(job);
  }
}

}  // namespace
