// What the float32 and the AMX kernels of paged attention share: where keys lie, what a row sees of them, and
// the running softmax of a row. Included once per instruction set, after its Simd.
#pragma once
#include "ops/cpu/attention_job.h"

namespace {

using atom::ops::cpu::attention_stride;
using atom::ops::cpu::AttentionJob;
using atom::ops::cpu::kAttentionTile;
using atom::ops::cpu::KvType;
using Reg = Simd::Reg;
constexpr int kLanes = Simd::kLanes;

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct F8 {  // E4M3
  uint8_t bits;
};
inline Reg load_kv(const float* p) { return Simd::load(p); }
inline Reg load_kv(const Bf16* p) { return Simd::load_bf16(&p->bits); }
inline Reg load_kv(const F16* p) { return Simd::load_f16(&p->bits); }
inline Reg load_kv(const F8* p) {
  return Simd::mul(Simd::load_f8e4m3(&p->bits), Simd::set1(1 / Simd::kF8Unit));
}

constexpr float kLowest = -3.0e38f;  // finite, so that differences are never NaN
constexpr float kLog2E = 1.44269504f;

// The keys of one tile. Pointers beyond n repeat the last row, so whole vectors of keys may be processed.
template <class T>
struct Tile {
  int64_t first = 0;  // key position
  int32_t n = 0;
  const T* k[kAttentionTile];
  const T* v[kAttentionTile];
};

template <class T>
void locate(const AttentionJob& job, int64_t first, Tile<T>& tile) {
  tile.first = first;
  const int64_t left = job.end - first;
  tile.n = static_cast<int32_t>(left < kAttentionTile ? left : kAttentionTile);
  if (left <= 0) {
    tile.n = 0;
    return;
  }
  int64_t block = first / job.block_size;
  int64_t slot = first % job.block_size;
  const int64_t row_bytes = job.head_dim * static_cast<int64_t>(sizeof(T));
  for (int32_t t = 0; t < tile.n; ++block, slot = 0) {
    const char* k = job.k + job.block_table[block] * job.k_block_bytes;
    const char* v = job.v + job.block_table[block] * job.v_block_bytes;
    for (; slot < job.block_size && t < tile.n; ++slot, ++t) {
      tile.k[t] = reinterpret_cast<const T*>(k + slot * row_bytes);
      tile.v[t] = reinterpret_cast<const T*>(v + slot * row_bytes);
    }
  }
  for (int32_t t = tile.n; t < kAttentionTile; ++t) {
    tile.k[t] = tile.k[tile.n - 1];
    tile.v[t] = tile.v[tile.n - 1];
  }
}

// Keys [lo, hi) of the tile that the row at `position` sees.
struct Visible {
  int32_t lo, hi;
};
inline Visible visible(const AttentionJob& job, int64_t position, int64_t first, int32_t n) {
  const int64_t hi = position + 1 - first;
  const int64_t lo = job.window == 0 ? 0 : hi - job.window;
  return {static_cast<int32_t>(lo < 0 ? 0 : lo), static_cast<int32_t>(hi < 0 ? 0 : hi < n ? hi : n)};
}

// Before the first tile.
inline void clear_results(const AttentionJob& job) {
  const int64_t stride = attention_stride(job.head_dim);
  __builtin_memset(job.acc, 0, job.vectors() * stride * sizeof(float));
  for (int32_t v = 0; v < job.vectors(); ++v) {
    job.max[v] = kLowest;
    job.sum[v] = 0;
  }
}

// Scores of the vectors [first, first + count), count <= 32, against the keys [tile_first, tile_first + n),
// in rows of kAttentionTile, become weights: put(row, t, weights of t .. t + kLanes) for t < width, zeros
// where hidden. Running maxima and sums are updated; factors (room for 32) get what the accumulators must be
// scaled by.
template <class Put>
void softmax_rows(const AttentionJob& job, int32_t first, int32_t count, int64_t tile_first, int32_t n,
                  int32_t width, float* scores, float* factors, Put put) {
  const float hidden = -__builtin_inff();
  const Reg scale = Simd::set1(job.scale * kLog2E);
  alignas(64) float tops[32] = {};
  for (int32_t r = 0; r < count; ++r) {
    float* row = scores + r * kAttentionTile;
    const Visible see = visible(job, job.first_position + (first + r) / job.group, tile_first, n);
    for (int32_t t = 0; t < see.lo && t < width; ++t) row[t] = hidden;
    for (int32_t t = see.hi > see.lo ? see.hi : 0; t < width; ++t) row[t] = hidden;
    Reg top = Simd::load(row);
    for (int32_t t = kLanes; t < width; t += kLanes) top = Simd::max(top, Simd::load(row + t));
    tops[r] = Simd::max_lane(top);
  }
  for (int32_t r = 0; r < count; r += kLanes) {
    const int32_t lanes = count - r < kLanes ? count - r : kLanes;
    float* max = job.max + first + r;
    float* sum = job.sum + first + r;
    const Reg old = Simd::load_n(max, lanes);
    const Reg top = Simd::max(Simd::mul(Simd::load(tops + r), scale), old);
    const Reg factor = Simd::exp2(Simd::sub(old, top));
    Simd::store(factors + r, factor);
    Simd::store_n(max, top, lanes);
    Simd::store_n(sum, Simd::mul(Simd::load_n(sum, lanes), factor), lanes);
  }
  for (int32_t r = 0; r < count; ++r) {
    const float* row = scores + r * kAttentionTile;
    const Reg shift = Simd::set1(job.max[first + r]);
    Reg total = Simd::zero();
    for (int32_t t = 0; t < width; t += kLanes) {
      const Reg p = Simd::exp2(Simd::fms(Simd::load(row + t), scale, shift));
      put(r, t, p);
      total = Simd::add(total, p);
    }
    job.sum[first + r] += Simd::sum(total);
  }
}

}  // namespace
