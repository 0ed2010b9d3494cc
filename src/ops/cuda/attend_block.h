// A block of the kernel of decode attention (attend_kernel.h): what it is given, how its shared memory is
// laid out, and its numbers. Device code only.
#pragma once
#include <algorithm>

#include "ops/cuda/cache_mma.h"
#include "ops/gpu/decode_kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kKeys = 16;  // of a warp at a time; they lie in one block of the cache
constexpr int kHeads = 8;  // query heads of a block at most
constexpr int kMaxSplits = 64;
constexpr int kTeam = 8;  // splits of a cluster at most
// Tiles of a warp that take no longer than what it takes to add up several clusters, and those that pay for
// that.
constexpr int kDeepTiles = 8, kLeastTiles = 2;

struct DecodeArguments {
  void* out;  // of `out_type`: f32, or bf16 or f16 for a product that reads nothing else
  DType out_type;
  const float* qkv;
  void *k, *v;
  const float *q_norm, *k_norm, *cos, *sin, *sinks, *gate;
  // Per pair: [team, head] largest score and weight, then sums [team, head, lane].
  float* partials;
  int32_t* counters;  // per pair: splits that have finished
  int64_t out_stride, qkv_stride, cos_stride, sin_stride, gate_stride;
  int64_t k_block_stride, k_head_stride, v_block_stride, v_head_stride;
  const AttentionSequence* sequences;
  int heads, kv_heads, heads_per_kv, groups_per_kv;
  int rows;  // pair p is row p % rows
  int rotary_dim, block_shift, window, splits,
      team;  // block_shift: a power of two; splits: whole clusters of `team`
  bool interleaved;
  float eps, weight_offset;
  float scale;         // of scores, in powers of two and for keys as they are stored
  float per_k, per_v;  // what keys and values are multiplied by before they are stored
  float value_scale;
};

__host__ __device__ inline int heads_of_block(int heads_per_kv) {
  return heads_per_kv < kHeads ? heads_per_kv : kHeads;
}
// Floats of `splits` times `heads` pairs; sums that follow them are at 16 bytes.
__host__ __device__ inline int64_t stats_floats(int splits, int heads) {
  return (int64_t{splits} * heads * 2 + 3) / 4 * 4;
}
__host__ __device__ inline int64_t partial_floats(int splits, int heads, int dim) {
  return stats_floats(splits, heads) + int64_t{splits} * heads * dim;
}

// Blocks that a processor has room for, on Hopper with these bytes in the ring of a warp at most. Before
// Hopper a block may have no more than 99 KiB on some devices.
template <class T, int kDim, bool kFew>
constexpr int kBlocks = kDim == 128 && sizeof(T) == 1 ? (kFew ? 4 : 3)
                        : kDim == 64                  ? 3
                                                      : 2;
template <class T, int kDim, bool kFew>
constexpr int kLargeRing = (kBlocks<T, kDim, kFew> == 4 ? 12 : 24) << 10;
constexpr int kSmallRing = 16 << 10;

// Shared memory of a block: the rings of its warps, where later their sums lie, the query heads, and the new
// key and value as they are stored. A slot of a ring has the keys or the values of one tile.
template <class T, int kDim, int kRingBytes>
struct Places {
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T)), kChunks = kRowBytes / 16;
  static constexpr int kSlotBytes = kKeys * kChunks * 16;
  static constexpr int kSlots = std::min<int>(kRingBytes / kSlotBytes, 8);
  static constexpr int kRing = kSlots * kSlotBytes;
  static constexpr int kHeadFloats = kDim + 4;  // 8 heads' lanes fall into different banks
  static constexpr int kHeadsAt = kWarps * kRing;
  static constexpr int kNewAt = kHeadsAt + (kHeads + 2) * kHeadFloats * 4;
  static constexpr int kBytes = kNewAt + 2 * kRowBytes;
  static_assert(kRing >= kHeads * kDim * 4 && kNewAt % 16 == 0);
  // Where 16 bytes of a row lie in its slot: threads that read together fall into different banks.
  __device__ static constexpr int turn(int row) {
    return kChunks >= 8 ? ((row & 6) ^ (row & 1) << 2) * 16 : 0;
  }
  __device__ static int at(int row, int chunk) { return row * kRowBytes + (chunk * 16 ^ turn(row)); }
};

__device__ inline uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ inline float low(uint32_t pair, Bf16) { return __uint_as_float(pair << 16); }
__device__ inline float high(uint32_t pair, Bf16) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ inline float low(uint32_t pair, F16) { return widen(F16{static_cast<uint16_t>(pair)}); }
__device__ inline float high(uint32_t pair, F16) { return widen(F16{static_cast<uint16_t>(pair >> 16)}); }
// What `pair` leaves of x and y.
template <class H>
__device__ inline uint32_t rest(uint32_t pair, float x, float y) {
  return pack(x - low(pair, H{}), y - high(pair, H{}), H{});
}

__device__ inline float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
__device__ inline float4 add_scaled(float4 a, float f, float4 b) {
  return {a.x + f * b.x, a.y + f * b.y, a.z + f * b.z, a.w + f * b.w};
}
// Four results of the row's heads from `head0` on, of which they are number `at`.
template <int kDim>
__device__ inline void store_four(const DecodeArguments& a, int row, int head0, int at, const float4& v) {
  const int64_t place = row * a.out_stride + int64_t{head0} * kDim + int64_t{at} * 4;
  if (a.out_type == DType::f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(a.out) + place) = v;
    return;
  }
  const bool bf16 = a.out_type == DType::bf16;
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(a.out) + place) = {
      bf16 ? pack(v.x, v.y, Bf16{}) : pack(v.x, v.y, F16{}),
      bf16 ? pack(v.z, v.w, Bf16{}) : pack(v.z, v.w, F16{})};
}
__device__ inline float gated(float x, float gate) { return x / (1 + __expf(-gate)); }

}  // namespace
}  // namespace atom::ops::gpu_kernels
