// Attention of decodes in one kernel: norm, rope and store of the new token's heads, attention over its
// context and the gate behind it.
//   out[h] = sum over visible keys of softmax(scale * q[h]·k) v * sigmoid(gate[h])
// Bound: keys and values of the context, read once per kv head. Grid: (sequence, kv head and up to 8 of its
// query heads, split of the context); splits without keys leave at once, and whoever finishes last merges.
//
// A warp takes 16 keys at a time, on tensor cores: 16 bytes of a key's row are, as they lie in memory, a
// fragment of q·k, and those of four values one of p·v after their halves are paired; the order of the lanes
// is that of the queries and sums. Queries and weights keep 16 bits of mantissa as sums of two numbers of
// the cache's type: those of q fill the half of a product that 8 heads leave free.
//
// Keys and values before the new one are of earlier steps, so the first of them are loaded before the kernels
// of this step have ended. The new key and value never come from the cache: the block of the first split has
// them and stores them, and merges them as if another warp had seen one key.
#include <algorithm>
#include <bit>

#include "ops/cuda/mma.h"
#include "ops/gpu/decode_kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kKeys = 16;  // of a warp at a time; they lie in one block of the cache
constexpr int kHeads = 8;  // query heads of a block at most
constexpr int kMaxSplits = 64;
constexpr int kLeastKeys = 128;  // of a split: a tile for every warp
constexpr int kAloneKeys = 256;  // are not split: a merge takes longer than another tile

struct DecodeArguments {
  float* out;
  const float* qkv;
  void *k, *v;
  const float *q_norm, *k_norm, *cos, *sin, *sinks, *gate;
  float*
      partials;  // per row and group: [split, head] largest score and weight, then sums [split, head, lane]
  int32_t* counters;  // [row, group]: splits that have finished
  int64_t out_stride, qkv_stride, cos_stride, sin_stride, gate_stride;
  int64_t k_block_stride, k_head_stride, v_block_stride, v_head_stride;
  const AttentionSequence* sequences;
  int heads, kv_heads, heads_per_kv, groups_per_kv;
  int rotary_dim, block_shift, window, splits;  // block_shift: a power of two
  bool interleaved;
  float eps, weight_offset, scale;
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

// What a block keeps in shared memory, in floats: the new token's heads, then fragments of the queries, whose
// place the sums of the warps take.
template <int kDim>
struct Places {
  static constexpr int kRow = kDim + 4;  // of a head: 8 heads' lanes fall into different banks
  static constexpr int kFragments = (kHeads + 2) * kRow;
  static int floats(int heads) {
    return kFragments + std::max({kDim / 16 * 32 * 4, kWarps * heads * kDim, kThreads * 4});
  }
};

// Eight elements as 16 bytes of the type that products take.
template <class T>
__device__ inline uint4 load_eight(const T* p, bool valid) {
  static_assert(sizeof(T) == 2);
  return valid ? load_once(reinterpret_cast<const uint4*>(p)) : uint4{};
}
__device__ inline uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
template <class T>
__device__ inline float low(uint32_t pair) {
  return widen(T{static_cast<uint16_t>(pair)});
}
template <class T>
__device__ inline float high(uint32_t pair) {
  return widen(T{static_cast<uint16_t>(pair >> 16)});
}
// What `pair` leaves of x and y.
template <class T>
__device__ inline uint32_t rest(uint32_t pair, float x, float y) {
  return pack(x - low<T>(pair), y - high<T>(pair), T{});
}

__device__ inline float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
__device__ inline float4 add_scaled(float4 a, float f, float4 b) {
  return {a.x + f * b.x, a.y + f * b.y, a.z + f * b.z, a.w + f * b.w};
}
__device__ inline float gated(float x, float gate) { return x / (1 + __expf(-gate)); }

// The heads that a block needs of its row's qkv, head i in rows[i]: its queries, and with `stores` the new
// key and value.
template <class T, int kDim>
class NewHeads {
 public:
  __device__ NewHeads(const DecodeArguments& a, int kv_head, int head0, int group, bool stores, float* rows)
      : a_(a),
        kv_head_(kv_head),
        head0_(head0),
        group_(group),
        heads_(stores ? group + 2 : group),
        rows_(rows) {}

  // After wait_for_previous(): a warp loads the heads that it prepares.
  __device__ void load(int64_t token) {
    constexpr int kEach = 2;
    static_assert(kEach * kWarps >= kHeads + 2);
    float x[kEach][kLanes];
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int head = warp() + r * kWarps;
      if (head >= heads_) continue;
      const int place =
          head < group_ ? head0_ + head : a_.heads + (head == group_ ? 0 : a_.kv_heads) + kv_head_;
      const float* from = a_.qkv + token * a_.qkv_stride + int64_t{place} * kDim;
#pragma unroll
      for (int j = 0; j < kLanes; ++j) x[r][j] = from[lane() + 32 * j];
    }
#pragma unroll
    for (int j = 0; j < kAngles; ++j) {
      const int i = lane() + 32 * j;
      if (a_.cos == nullptr || i >= a_.rotary_dim / 2) continue;
      cos_[j] = a_.cos[token * a_.cos_stride + i];
      sin_[j] = a_.sin[token * a_.sin_stride + i];
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int head = warp() + r * kWarps;
      if (head >= heads_) continue;
#pragma unroll
      for (int j = 0; j < kLanes; ++j) row(head)[lane() + 32 * j] = x[r][j];
    }
  }
  // Norm and rope. Key and value are rounded as the cache has them, and stored in `k` and `v`, their slots,
  // if these are not null.
  __device__ void finish(T* k, T* v) {
#pragma unroll 1
    for (int head = warp(); head < heads_; head += kWarps) {
      float* y = row(head);
      if (const float* norm = head < group_ ? a_.q_norm : head == group_ ? a_.k_norm : nullptr) {
        float weights[kLanes], squares = 0;
#pragma unroll
        for (int j = 0; j < kLanes; ++j) weights[j] = a_.weight_offset + norm[lane() + 32 * j];
#pragma unroll
        for (int j = 0; j < kLanes; ++j) squares += y[lane() + 32 * j] * y[lane() + 32 * j];
        const float scale = 1 / sqrtf(warp_sum(squares) / kDim + a_.eps);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) y[lane() + 32 * j] *= scale * weights[j];
        sync_warp();
      }
      if (head <= group_ && a_.cos != nullptr) turn(y);
      if (head < group_) continue;
      T* slot = head == group_ ? k : v;
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const int d = lane() + 32 * j;
        T stored;
        narrow(y[d], stored);
        y[d] = widen(stored);
        if (slot != nullptr) slot[d] = stored;
      }
    }
  }

 private:
  static constexpr int kLanes = kDim / 32, kAngles = (kDim / 2 + 31) / 32;
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ float* row(int head) const { return rows_ + head * Places<kDim>::kRow; }
  __device__ void turn(float* y) const {
    sync_warp();
    const int half = a_.rotary_dim / 2;
#pragma unroll
    for (int j = 0; j < kAngles; ++j) {
      const int i = lane() + 32 * j;
      if (i >= half) continue;
      float& first = y[a_.interleaved ? 2 * i : i];
      float& second = y[a_.interleaved ? 2 * i + 1 : i + half];
      const float p = first, q = second;
      first = p * cos_[j] - q * sin_[j];
      second = q * cos_[j] + p * sin_[j];
    }
    sync_warp();
  }

  const DecodeArguments& a_;
  const int kv_head_, head0_, group_, heads_;
  float* const rows_;
  float cos_[kAngles], sin_[kAngles];
};

// The splits of a row have left their sums; the last of them adds them all.
template <int kDim>
__device__ void merge_splits(const DecodeArguments& a, int64_t place, int active, int group, int head0,
                             float* buffer, float* out, const float* gate) {
  __shared__ float shares[kHeads][kMaxSplits];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int stride = heads_of_block(a.heads_per_kv);
  const float* base = a.partials + place * partial_floats(a.splits, stride, kDim);
  const auto* stats = reinterpret_cast<const float2*>(base);
  const auto* sums = reinterpret_cast<const float4*>(base + stats_floats(a.splits, stride));
  if (warp < group) {
    float2 mine[kMaxSplits / 32];
    float top = kNone, total = 0;
#pragma unroll
    for (int i = 0; i < kMaxSplits / 32; ++i) {
      const int p = lane + 32 * i;
      mine[i] = p < active ? load_fresh(stats + p * stride + warp) : float2{kNone, 0};
      top = fmaxf(top, mine[i].x);
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < kMaxSplits / 32; ++i) {
      mine[i].x = power_of_two(mine[i].x - top);
      total += mine[i].x * mine[i].y;
    }
    total = warp_sum(total);
    if (a.sinks != nullptr) total += power_of_two(a.sinks[head0 + warp] * kLog2e - top);
#pragma unroll
    for (int i = 0; i < kMaxSplits / 32; ++i) shares[warp][lane + 32 * i] = mine[i].x / total;
  }
  __syncthreads();
  constexpr int kFours = kDim / 4;
  const int items = group * kFours, parts = max(1, kThreads / items);
  const int part = parts > 1 ? static_cast<int>(threadIdx.x) / items : 0;
  auto* partial = reinterpret_cast<float4*>(buffer);
#pragma unroll 1
  for (int i = parts > 1 ? threadIdx.x % items : threadIdx.x; i < items && part < parts; i += kThreads) {
    float4 sum = {};
#pragma unroll 8
    for (int p = part; p < active; p += parts) {
      sum = add_scaled(sum, shares[i / kFours][p], load_fresh(sums + int64_t{p} * stride * kFours + i));
    }
    partial[part * items + i] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < items; i += kThreads) {
    float4 sum = partial[i];
#pragma unroll 1
    for (int p = 1; p < parts; ++p) sum = add(sum, partial[p * items + i]);
    if (gate != nullptr) {
      const float4 g = reinterpret_cast<const float4*>(gate)[i];
      sum = {gated(sum.x, g.x), gated(sum.y, g.y), gated(sum.z, g.z), gated(sum.w, g.w)};
    }
    reinterpret_cast<float4*>(out)[i] = sum;
  }
}

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64    ? 3
                                            : kDim == 128 ? 2
                                                          : 1) decode_kernel(DecodeArguments a) {
  constexpr int kSteps = kDim / 16, kChunks = kDim / 64;
  extern __shared__ __align__(16) float memory[];
  __shared__ float2 warp_stats[kWarps][kHeads];  // largest score and weight, in powers of two
  __shared__ float new_scores[kHeads];
  __shared__ bool merges;
  let_next_start();

  const int row = blockIdx.x, split = blockIdx.z;
  const int kv_head = blockIdx.y / a.groups_per_kv, first_of_group = blockIdx.y % a.groups_per_kv * kHeads;
  const int head0 = kv_head * a.heads_per_kv + first_of_group,
            group = min(kHeads, a.heads_per_kv - first_of_group);
  float* out = a.out + row * a.out_stride + int64_t{head0} * kDim;
  const AttentionSequence s = a.sequences[row];
  if (s.block_table == nullptr) {
    if (split > 0) return;
    wait_for_previous();
#pragma unroll 1
    for (int i = threadIdx.x; i < group * kDim; i += kThreads) out[i] = 0;
    return;
  }
  // Tiles of the keys before the new one, at multiples of kKeys; this block's are [tile, end).
  const int position = s.context, first_key = a.window > 0 ? max(0, position - a.window + 1) : 0;
  const int first_tile = first_key / kKeys, tiles = (position + kKeys - 1) / kKeys - first_tile;
  const int keys = tiles * kKeys;
  const int shares = keys <= kAloneKeys ? 1 : min(a.splits, (keys + kLeastKeys - 1) / kLeastKeys);
  const int per_split = max(1, (tiles + shares * kWarps - 1) / (shares * kWarps)) * kWarps;
  const int active = max(1, (tiles + per_split - 1) / per_split);
  if (split >= active) return;
  const bool owns_new = split == 0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int end = first_tile + min(tiles, (split + 1) * per_split);
  int tile = first_tile + split * per_split + warp;

  const T* k_cache = static_cast<const T*>(a.k) + kv_head * a.k_head_stride;
  const T* v_cache = static_cast<const T*>(a.v) + kv_head * a.v_head_stride;
  // Lane i has the entry of the block table for this warp's tile i ahead, of 32 at a time.
  int entries = 0, ahead = 0;
  auto load_entries = [&](int from) {
    const int mine = from + lane * kWarps;
    entries = mine < end ? s.block_table[mine * kKeys >> a.block_shift] : 0;
    ahead = 0;
  };
  auto slot_of = [&](int key) { return key & ((1 << a.block_shift) - 1); };
  auto visible = [&](int key) { return key >= first_key && key < position; };
  uint4 k[2][kDim / 32], v[kChunks][4];
  auto load_k = [&](int of, int block) {
    const T* from = k_cache + block * a.k_block_stride + slot_of(of * kKeys) * kDim + c * 8;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int key = t * 8 + g;
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j)
        k[t][j] = load_eight(from + key * kDim + j * 32, visible(of * kKeys + key));
    }
  };
  auto load_v = [&](int of, int block) {
    const T* from = v_cache + block * a.v_block_stride + slot_of(of * kKeys) * kDim + g * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = c * 2 + i % 2 + i / 2 * 8;
#pragma unroll
      for (int j = 0; j < kChunks; ++j)
        v[j][i] = load_eight(from + key * kDim + j * 64, visible(of * kKeys + key));
    }
  };
  load_entries(tile);
  if (tile < end) {
    const int block = shuffle(entries, 0);
    load_k(tile, block);
    load_v(tile, block);
  }
  NewHeads<T, kDim> heads(a, kv_head, head0, group, owns_new, memory);
  wait_for_previous();

  heads.load(row);
  T *new_k = nullptr, *new_v = nullptr;
  if (owns_new && first_of_group == 0) {
    const int64_t block = s.block_table[position >> a.block_shift], slot = slot_of(position);
    new_k = static_cast<T*>(a.k) + kv_head * a.k_head_stride + block * a.k_block_stride + slot * kDim;
    new_v = static_cast<T*>(a.v) + kv_head * a.v_head_stride + block * a.v_block_stride + slot * kDim;
  }
  heads.finish(new_k, new_v);
  __syncthreads();

  constexpr int kRow = Places<kDim>::kRow;
  const float q_scale = a.scale * kLog2e;
  float* shared_sums = memory + Places<kDim>::kFragments;
  uint4* fragments = reinterpret_cast<uint4*>(shared_sums);
  for (int step = warp; step < kSteps; step += kWarps) {
    float4 q = {};
    if (g < group)
      q = *reinterpret_cast<const float4*>(memory + g * kRow + step / 2 * 32 + c * 8 + step % 2 * 4);
    q = {q.x * q_scale, q.y * q_scale, q.z * q_scale, q.w * q_scale};
    const uint32_t first = pack(q.x, q.y, T{}), second = pack(q.z, q.w, T{});
    fragments[step * 32 + lane] = {first, rest<T>(first, q.x, q.y), second, rest<T>(second, q.z, q.w)};
  }
  if (owns_new && warp < group) {
    float score = 0;
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j)
      score += memory[warp * kRow + lane + 32 * j] * memory[group * kRow + lane + 32 * j];
    score = warp_sum(score) * q_scale;
    if (lane == 0) new_scores[warp] = score;
  }
  __syncthreads();

  // Head g of the stats is lane / 4's; sums have heads 2c and 2c + 1 of 8 lanes from 8g on in each chunk.
  float sums[kChunks][4][4] = {};
  float largest = kNone, weight = 0;
  while (tile < end) {
    const int next = tile + kWarps;
    float scores[2][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 q = fragments[step * 32 + lane];
      const uint32_t parts[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        multiply(scores[t], parts, word(k[t][step / 2], step % 2 * 2), word(k[t][step / 2], step % 2 * 2 + 1),
                 T{});
      }
    }
    if (next < end) {
      if (++ahead == 32) load_entries(next);
      load_k(next, shuffle(entries, ahead));
    }
    float p[2][2];
    float top = kNone;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        p[t][e] = visible(tile * kKeys + t * 8 + c * 2 + e) ? scores[t][e] + scores[t][e + 2] : kNone;
        top = fmaxf(top, p[t][e]);
      }
    }
    top = fmaxf(top, shuffle_xor(top, 1));
    top = fmaxf(top, shuffle_xor(top, 2));
    if (ballot(top > largest) != 0) {
      const float now = fmaxf(largest, top), correction = power_of_two(largest - now);
      largest = now;
      weight *= correction;
      const float first = shuffle(correction, c * 8), second = shuffle(correction, c * 8 + 4);
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          sums[j][m][0] *= first, sums[j][m][1] *= second, sums[j][m][2] *= first, sums[j][m][3] *= second;
        }
      }
    }
    uint32_t weights[2], rests[2];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      p[t][0] = power_of_two(p[t][0] - largest);
      p[t][1] = power_of_two(p[t][1] - largest);
      weight += p[t][0] + p[t][1];
      weights[t] = pack(p[t][0], p[t][1], T{});
      rests[t] = rest<T>(weights[t], p[t][0], p[t][1]);
    }
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint32_t w[4] = {word(v[j][0], m), word(v[j][1], m), word(v[j][2], m), word(v[j][3], m)};
        const uint32_t pairs[4] = {__byte_perm(w[0], w[1], 0x5410), __byte_perm(w[0], w[1], 0x7632),
                                   __byte_perm(w[2], w[3], 0x5410), __byte_perm(w[2], w[3], 0x7632)};
        multiply(sums[j][m], pairs, weights[0], weights[1], T{});
        multiply(sums[j][m], pairs, rests[0], rests[1], T{});
      }
    }
    if (next < end) load_v(next, shuffle(entries, ahead));
    tile = next;
  }
  weight += shuffle_xor(weight, 1);
  weight += shuffle_xor(weight, 2);
  if (c == 0) warp_stats[warp][g] = {largest, weight};
  __syncthreads();  // all have read their fragments
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int head = c * 2 + e;
    if (head >= group) break;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      auto* to = reinterpret_cast<float4*>(shared_sums + (warp * group + head) * kDim + j * 64 + g * 8);
      to[0] = {sums[j][0][e], sums[j][0][e + 2], sums[j][1][e], sums[j][1][e + 2]};
      to[1] = {sums[j][2][e], sums[j][2][e + 2], sums[j][3][e], sums[j][3][e + 2]};
    }
  }
  __syncthreads();

  // The block's sums: those of its warps, and the new value's.
  const int64_t place = int64_t{row} * gridDim.y + blockIdx.y;
  const int stride = heads_of_block(a.heads_per_kv);
  float* partial = a.partials + place * partial_floats(a.splits, stride, kDim);
  auto* partial_sums =
      reinterpret_cast<float4*>(partial + stats_floats(a.splits, stride) + int64_t{split} * stride * kDim);
  const float* gate = a.gate == nullptr ? nullptr : a.gate + row * a.gate_stride + int64_t{head0} * kDim;
  constexpr int kFours = kDim / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < group * kFours; i += kThreads) {
    const int head = i / kFours;
    float top = owns_new ? new_scores[head] : kNone;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, warp_stats[w][head].x);
    float total = 0;
    float4 sum = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 stats = warp_stats[w][head];
      const float share = power_of_two(stats.x - top);
      total += share * stats.y;
      sum = add_scaled(sum, share, reinterpret_cast<const float4*>(shared_sums)[w * group * kFours + i]);
    }
    if (owns_new) {
      const float share = power_of_two(new_scores[head] - top);
      total += share;
      sum = add_scaled(sum, share,
                       *reinterpret_cast<const float4*>(memory + (group + 1) * kRow + i % kFours * 4));
    }
    if (active > 1) {
      partial_sums[i] = sum;
      if (i % kFours == 0) reinterpret_cast<float2*>(partial)[split * stride + head] = {top, total};
      continue;
    }
    if (a.sinks != nullptr) total += power_of_two(a.sinks[head0 + head] * kLog2e - top);
    sum = {sum.x / total, sum.y / total, sum.z / total, sum.w / total};
    if (gate != nullptr) {
      const float4 x = reinterpret_cast<const float4*>(gate)[i];
      sum = {gated(sum.x, x.x), gated(sum.y, x.y), gated(sum.z, x.z), gated(sum.w, x.w)};
    }
    reinterpret_cast<float4*>(out)[i] = sum;
  }
  if (active == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    merges = atomicAdd(a.counters + place, 1) == active - 1;
    if (merges) a.counters[place] = 0;
  }
  __syncthreads();
  if (!merges) return;
  __threadfence();
  merge_splits<kDim>(a, place, active, group, head0, shared_sums, out, gate);
}

int64_t groups_of(const Attend& op) {
  return int64_t{op.store.kv_heads} * ceil_div(op.store.heads / op.store.kv_heads, kHeads);
}

template <class T, int kDim>
void start(Stream& stream, DecodeArguments a, int64_t rows, int64_t groups) {
  gpu::Queue& queue = stream.queue();
  const int heads = heads_of_block(a.heads_per_kv);
  // As many splits as find room on the device at once.
  constexpr int kBlocks = kDim == 64 ? 3 : kDim == 128 ? 2 : 1;
  const int64_t room = int64_t{kBlocks} * queue.processors() / (rows * groups);
  a.splits = static_cast<int>(std::clamp<int64_t>(room, 1, kMaxSplits));
  const int64_t floats = a.splits == 1 ? 0 : rows * groups * partial_floats(a.splits, heads, kDim);
  a.partials = static_cast<float*>(queue.scratch(floats * static_cast<int64_t>(sizeof(float))));
  a.counters = queue.counters();
  launch(queue, decode_kernel<T, kDim>,
         dim3(static_cast<unsigned>(rows), static_cast<unsigned>(groups), static_cast<unsigned>(a.splits)),
         dim3(kThreads), static_cast<size_t>(Places<kDim>::floats(heads)) * sizeof(float), a);
}

bool in_sixteens(const Tensor& cache) {
  return aligned16(cache.data) && cache.strides[0] % 8 == 0 && cache.strides[1] % 8 == 0;
}
bool in_fours(const Tensor& rows) { return aligned16(rows.data) && rows.strides[0] % 4 == 0; }

}  // namespace

const char* refuse_attend_decode(const Stream& stream, const Attend& op) {
  const AttentionBatch& batch = *op.store.batch;
  const Tensor& k = op.store.k_cache;
  if (stream.queue().capability() < 80) return "needs compute capability 8.0";
  if (!Sequences(batch).one_row_each) return "sequences have several rows";
  if (k.dtype != DType::bf16 && k.dtype != DType::f16) return "for caches of 16-bit types";
  const int dim = op.store.head_dim;
  if (dim != 64 && dim != 128 && dim != 256) return "for heads of 64, 128 or 256 lanes";
  if (batch.block_size < kKeys || !std::has_single_bit(static_cast<unsigned>(batch.block_size))) {
    return "a block of the cache is no power of two of 16 tokens or more";
  }
  if (batch.tokens * groups_of(op) > gpu::Queue::kCounters) return "too many sequences";
  if (!in_sixteens(k) || !in_sixteens(op.store.v_cache) || !in_fours(op.attention.out) ||
      (op.gate && !in_fours(op.gate))) {
    return "rows are not aligned";
  }
  return nullptr;
}

void attend_decode(Stream& stream, const Attend& op) {
  const QkNormRopeStore& s = op.store;
  const PagedAttention& p = op.attention;
  const int64_t rows = p.out.dim(0);
  if (rows == 0) return;
  const DecodeArguments a{.out = p.out.as<float>(),
                          .qkv = s.qkv.as<float>(),
                          .k = s.k_cache.data,
                          .v = s.v_cache.data,
                          .q_norm = s.q_norm.as<float>(),
                          .k_norm = s.k_norm.as<float>(),
                          .cos = s.rope.cos.as<float>(),
                          .sin = s.rope.sin.as<float>(),
                          .sinks = p.sinks.as<float>(),
                          .gate = op.gate.as<float>(),
                          .partials = nullptr,
                          .counters = nullptr,
                          .out_stride = p.out.strides[0],
                          .qkv_stride = s.qkv.strides[0],
                          .cos_stride = s.rope.cos.strides[0],
                          .sin_stride = s.rope.sin.strides[0],
                          .gate_stride = op.gate.strides[0],
                          .k_block_stride = s.k_cache.strides[0],
                          .k_head_stride = s.k_cache.strides[1],
                          .v_block_stride = s.v_cache.strides[0],
                          .v_head_stride = s.v_cache.strides[1],
                          .sequences = s.batch->sequences.data(),
                          .heads = s.heads,
                          .kv_heads = s.kv_heads,
                          .heads_per_kv = s.heads / s.kv_heads,
                          .groups_per_kv = static_cast<int>(ceil_div(s.heads / s.kv_heads, kHeads)),
                          .rotary_dim = s.rotary_dim,
                          .block_shift = std::countr_zero(static_cast<unsigned>(s.batch->block_size)),
                          .window = p.window,
                          .splits = 1,
                          .interleaved = s.rope_interleaved,
                          .eps = s.norm_eps,
                          .weight_offset = s.norm_weight_offset,
                          .scale = p.scale};
  auto of_type = [&](auto element) {
    using T = decltype(element);
    if (s.head_dim == 64) return start<T, 64>(stream, a, rows, groups_of(op));
    if (s.head_dim == 128) return start<T, 128>(stream, a, rows, groups_of(op));
    start<T, 256>(stream, a, rows, groups_of(op));
  };
  if (s.k_cache.dtype == DType::bf16) return of_type(Bf16{});
  of_type(F16{});
}

}  // namespace atom::ops::gpu_kernels
