// Attention of decodes in one kernel: norm, rope and store of the new token's heads, attention over its
// context and the gate behind it.
//   out[h] = sum over visible keys of softmax(scale * q[h]·k) v * sigmoid(gate[h])
// Bound: keys and values of the context, read once per kv head. Grid: pairs of a sequence and a kv head with
// up to 8 of its query heads, times splits of the context; splits without keys leave at once. Splits of one
// cluster are added up in shared memory, and the last of several clusters to finish adds them up.
//
// A warp takes 16 keys at a time, which a ring of its own in shared memory brings, and works on tensor cores:
// 16 bytes of a key's row are, as they lie in memory, a fragment of q·k, and those of four values one of p·v
// after their halves are paired; the order of the lanes is that of the queries and sums. Queries and weights
// keep 16 bits of mantissa or more as sums of two numbers of the cache's type (of f16 for E4M3): up to four
// heads fill the eight columns of a product with both, keys and values being its rows. With up to eight heads
// queries and what they leave are the rows of q·k, and p·v is done twice.
//
// Keys and values before the new one are of earlier steps, so the rings are filled before the kernels of this
// step have ended. The new key and value never come from the cache: the block of the last split stores them
// and puts them into the tile that they belong to.
#pragma once
#include <bit>

#include "ops/cuda/attend_heads.h"
#include "ops/cuda/attend_merge.h"
#include "ops/cuda/cluster.h"

namespace atom::ops::gpu_kernels {
namespace {

// Lane 4 i + j has two halves of row i of an 8 x 8 matrix, and after this of column i.
__device__ inline uint32_t transposed(uint32_t two) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(two));
  return r;
}
__device__ inline void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

// `kFew`: a block has up to four heads.
template <class T, int kDim, bool kFew>
__global__ void __launch_bounds__(kThreads, kBlocks<T, kDim, kFew>)
    decode_kernel(const __grid_constant__ DecodeArguments a) {
#if __CUDA_ARCH__ >= 900
  using P = Places<T, kDim, kLargeRing<T, kDim, kFew>>;
#else
  using P = Places<T, kDim, kSmallRing>;
#endif
  using H = FactorOf<T>;
  constexpr bool kWidens = sizeof(T) < sizeof(H);
  constexpr int kSteps = kDim / 16;                       // of 16 lanes
  constexpr int kPer = 16 / static_cast<int>(sizeof(T));  // lanes of a key in one load
  constexpr int kLoadSteps = kPer / 4;                    // that a load is good for
  constexpr int kValueBytes = P::kRowBytes < 128 ? 8 : 16, kValueWords = kValueBytes / 4;
  constexpr int kValueLoads = P::kRowBytes / 8 / kValueBytes, kValueLanes = kValueBytes / sizeof(T);
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ float2 warp_stats[kWarps][kHeads];  // largest score and weight, in powers of two
  __shared__ float2 block_stats[kHeads];
  __shared__ bool merges;

  const int pair = static_cast<int>(blockIdx.x) / a.splits, split = static_cast<int>(blockIdx.x) % a.splits;
  const int row = pair % a.rows, group_of_row = pair / a.rows;
  const int kv_head = group_of_row / a.groups_per_kv,
            first_of_group = group_of_row % a.groups_per_kv * kHeads;
  const int head0 = kv_head * a.heads_per_kv + first_of_group,
            group = min(kHeads, a.heads_per_kv - first_of_group);
  const AttentionSequence s = a.sequences[row];
  if (s.block_table == nullptr) {
    if (split > 0) return;
    wait_for_previous();
#pragma unroll 1
    for (int i = threadIdx.x; i < group * kDim / 4; i += kThreads) store_four<kDim>(a, row, head0, i, {});
    return;
  }
  // Tiles are at multiples of kKeys; the last one has the new key. This block's are [tile, end).
  const int position = s.context, first_key = a.window > 0 ? max(0, position - a.window + 1) : 0;
  const int first_tile = first_key / kKeys, last_tile = position / kKeys, tiles = last_tile + 1 - first_tile;
  const int per_team = a.team * kWarps;
  int shares = 1;
  if (tiles > kWarps * (a.team == 1 ? 4 : kDim == 256 ? 1 : 3)) {
    shares = a.team > 1 && tiles <= per_team * kDeepTiles
                 ? min(a.team, (tiles + kWarps - 1) / kWarps)
                 : min(a.splits, (tiles + per_team * kLeastTiles - 1) / (per_team * kLeastTiles) * a.team);
  }
  const int per_split = (tiles + shares * kWarps - 1) / (shares * kWarps) * kWarps;
  const int active = (tiles + per_split - 1) / per_split;
  if (split >= active) return;
  const int rank = a.team > 1 ? rank_in_cluster() : 0, mates = min(a.team, active - (split - rank));
  const int teams = (active + a.team - 1) / a.team;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int end = min(first_tile + (split + 1) * per_split, last_tile + 1);
  int tile = first_tile + split * per_split + warp;

  // What is copied next: keys or values of a tile. Lane i has the entry of the block table for this warp's
  // tile i ahead, of 32 at a time.
  unsigned char* ring = memory + warp * P::kRing;
  auto slot_of = [&](int key) { return key & ((1 << a.block_shift) - 1); };
  int next = tile, entries = 0, ahead = 32;
  int64_t block = 0;
  const T* const k_rows = static_cast<const T*>(a.k) + kv_head * a.k_head_stride + lane * kPer;
  const T* const v_rows = static_cast<const T*>(a.v) + kv_head * a.v_head_stride + lane * kPer;
  constexpr int kRowsAtOnce = 32 / P::kChunks;  // a warp copies so many at a time
  const int first_at = P::at(lane / P::kChunks, lane % P::kChunks);
  const uint32_t ring_at = shared_address(ring);
  auto fetch = [&](int slot, bool of_values) {
    if (next < end) {
      if (!of_values) {
        if (ahead == 32) {
          const int mine = next + lane * kWarps;
          entries = mine < end ? s.block_table[mine * kKeys >> a.block_shift] : 0;
          ahead = 0;
        }
        block = shuffle(entries, ahead++);
      }
      const T* from = (of_values ? v_rows + block * a.v_block_stride : k_rows + block * a.k_block_stride) +
                      slot_of(next * kKeys) * kDim;
      if (next < last_tile && next * kKeys >= first_key) {
        const uint32_t to = ring_at + slot * P::kSlotBytes;
#pragma unroll
        for (int i = 0; i < P::kSlotBytes / 512; ++i) {
          copy_16(to + (first_at ^ P::turn(i * kRowsAtOnce)) + i * 512, from + 32 * i * kPer);
        }
      } else {
#pragma unroll
        for (int i = 0; i < P::kSlotBytes / 512; ++i) {
          const int key = next * kKeys + lane / P::kChunks + i * kRowsAtOnce;
          copy_ahead(ring + slot * P::kSlotBytes + (first_at ^ P::turn(i * kRowsAtOnce)) + i * 512,
                     from + 32 * i * kPer, key >= first_key && key < position);
        }
      }
      if (of_values) next += kWarps;
    }
    end_copies();
  };
#pragma unroll 1
  for (int i = 0; i < P::kSlots; ++i) fetch(i, i % 2 == 1);
  const bool owns_new = split == active - 1;
  // What this thread will finish of its cluster: items of four lanes of a head.
  constexpr int kFours = kDim / 4, kItems = kHeads * kFours / kThreads;
  const int items = group * kFours;
  auto item_of = [&](int i) { return (i * mates + rank) * kThreads + static_cast<int>(threadIdx.x); };
  auto sink_of = [&](int i) {
    return a.sinks == nullptr || item_of(i) >= items ? kNone : a.sinks[head0 + item_of(i) / kFours] * kLog2e;
  };
  const float first_sink = sink_of(0);
  NewHeads<T, kDim, P> heads(a, kv_head, head0, group, owns_new, memory);
  T *new_k = nullptr, *new_v = nullptr;
  if (owns_new && first_of_group == 0) {
    const int64_t block = s.block_table[position >> a.block_shift], slot = slot_of(position);
    new_k = static_cast<T*>(a.k) + kv_head * a.k_head_stride + block * a.k_block_stride + slot * kDim;
    new_v = static_cast<T*>(a.v) + kv_head * a.v_head_stride + block * a.v_block_stride + slot * kDim;
  }
  wait_for_previous();
  let_next_start();  // not before: the weights that it fetches would come before what is loaded now
  const float* gate = a.gate == nullptr ? nullptr : a.gate + row * a.gate_stride + int64_t{head0} * kDim;
  float4 first_gate = {};
  if (gate != nullptr && item_of(0) < items) first_gate = reinterpret_cast<const float4*>(gate)[item_of(0)];
  heads.make(row, new_k, new_v);
  __syncthreads();

  // Of head g, times the scale of scores; row g of a product has what a number of type H holds of it, row
  // g + 8 what that leaves. Those of long heads take the place of what they are made of. With few heads
  // columns 0 to 3 have the heads, 4 to 7 what they leave.
  constexpr bool kInRegisters = kDim <= 128 || kFew;
  const int my_head = kFew ? g % 4 : g;
  auto fragment_at = [&](int step) {
    return memory + P::kHeadsAt +
           (my_head * P::kHeadFloats + step / kLoadSteps * 4 * kPer + c * kPer + step % kLoadSteps * 4) * 4;
  };
  auto fragment_of = [&](int step) {
    float4 x = {};
    if (my_head < group) x = *reinterpret_cast<const float4*>(fragment_at(step));
    x = {x.x * a.scale, x.y * a.scale, x.z * a.scale, x.w * a.scale};
    const uint32_t first = pack(x.x, x.y, H{}), second = pack(x.z, x.w, H{});
    return uint4{first, rest<H>(first, x.x, x.y), second, rest<H>(second, x.z, x.w)};
  };
  uint4 q[kInRegisters && !kFew ? kSteps : 1];
  uint2 columns[kFew ? kSteps : 1];
  if constexpr (kFew) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 x = fragment_of(step);
      columns[step] = g < 4 ? uint2{x.x, x.z} : uint2{x.y, x.w};
    }
  } else if constexpr (kInRegisters) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) q[step] = fragment_of(step);
  } else {
#pragma unroll
    for (int step = warp; step < kSteps; step += kWarps) {
      *reinterpret_cast<uint4*>(fragment_at(step)) = fragment_of(step);
    }
    __syncthreads();
  }

  // The new key or value, if the tile in `slot` has it.
  auto put_new = [&](unsigned char* slot, int which) {
    if (tile != last_tile) return;
    if (lane < P::kChunks) {
      *reinterpret_cast<uint4*>(slot + P::at(position % kKeys, lane)) =
          *reinterpret_cast<const uint4*>(memory + P::kNewAt + which * P::kRowBytes + lane * 16);
    }
    sync_warp();
  };
  // Scores have head g and keys 2c and 2c + 1 of eight, with few heads key g and heads 2c and 2c + 1 of four.
  // Sums have heads 2c and 2c + 1, and of each load of values two lanes for every m.
  float sums[kSteps][4] = {};
  constexpr int kOwn = kFew ? 2 : 1;  // heads that a thread has scores of
  float largest[kOwn], weight[kOwn];
#pragma unroll
  for (int e = 0; e < kOwn; ++e) largest[e] = kNone, weight[e] = 0;
  int slot = 0;
#pragma unroll 1
  for (; tile < end; tile += kWarps) {
    await_copies<P::kSlots - 1>();
    sync_warp();
    unsigned char* here = ring + slot * P::kSlotBytes;
    put_new(here, 0);
    // Two sums each, so that products do not wait for each other.
    float scores[2][2][4] = {};
#pragma unroll
    for (int j = 0; j < kSteps / kLoadSteps; ++j) {
      uint4 k[2];
#pragma unroll
      for (int t = 0; t < 2; ++t) k[t] = *reinterpret_cast<const uint4*>(here + P::at(t * 8 + g, j * 4 + c));
#pragma unroll
      for (int i = 0; i < kLoadSteps; ++i) {
        uint32_t first[2], second[2];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          if constexpr (kWidens) {
            const uint2 wide = widen_four(word(k[t], i));
            first[t] = wide.x, second[t] = wide.y;
          } else {
            first[t] = word(k[t], 2 * i), second[t] = word(k[t], 2 * i + 1);
          }
        }
        if constexpr (kFew) {
          const uint32_t keys[4] = {first[0], first[1], second[0], second[1]};
          const uint2 x = columns[j * kLoadSteps + i];
          multiply(scores[0][i % 2], keys, x.x, x.y, H{});
        } else {
          const uint4 x = kInRegisters ? q[kInRegisters ? j * kLoadSteps + i : 0]
                                       : *reinterpret_cast<const uint4*>(fragment_at(j * kLoadSteps + i));
          const uint32_t parts[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
          for (int t = 0; t < 2; ++t) multiply(scores[t][i % 2], parts, first[t], second[t], H{});
        }
      }
    }
    sync_warp();
    fetch(slot, P::kSlots % 2 == 1);
    slot = slot + 1 == P::kSlots ? 0 : slot + 1;
    float p[2][2], top[kOwn];
#pragma unroll
    for (int e = 0; e < kOwn; ++e) top[e] = kNone;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = tile * kKeys + t * 8 + (kFew ? g : c * 2 + e);
        float score;
        if constexpr (kFew) {
          score = scores[0][0][t * 2 + e] + scores[0][1][t * 2 + e];
          score += shuffle_xor(score, 2);
        } else {
          score = scores[t][0][e] + scores[t][0][e + 2] + (scores[t][1][e] + scores[t][1][e + 2]);
        }
        p[t][e] = key >= first_key && key <= position ? score : kNone;
        top[e % kOwn] = fmaxf(top[e % kOwn], p[t][e]);
      }
    }
    if (ballot(top[0] > largest[0] || top[kOwn - 1] > largest[kOwn - 1]) != 0) {
      float correction[2];
#pragma unroll
      for (int e = 0; e < kOwn; ++e) {
#pragma unroll
        for (int mask = kFew ? 4 : 1; mask < (kFew ? 32 : 4); mask *= 2) {
          top[e] = fmaxf(top[e], shuffle_xor(top[e], mask));
        }
        const float now = fmaxf(largest[e], top[e]);
        correction[e] = power_of_two(largest[e] - now);
        largest[e] = now;
        weight[e] *= correction[e];
      }
      if constexpr (!kFew) {
        correction[1] = shuffle(correction[0], c * 8 + 4);
        correction[0] = shuffle(correction[0], c * 8);
      }
#pragma unroll
      for (int m = 0; m < kSteps; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[m][e] *= correction[e % 2];
      }
    }
    uint32_t weights[2], rests[2];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        p[t][e] = power_of_two(p[t][e] - largest[e % kOwn]);
        weight[e % kOwn] += p[t][e];
      }
      weights[t] = pack(p[t][0], p[t][1], H{});
      rests[t] = rest<H>(weights[t], p[t][0], p[t][1]);
      if (kFew) weights[t] = transposed(c < 2 ? weights[t] : rests[t]);
    }
    await_copies<P::kSlots - 1>();
    sync_warp();
    here = ring + slot * P::kSlotBytes;
    put_new(here, 1);
#pragma unroll
    for (int l = 0; l < kValueLoads; ++l) {
      uint32_t v[4][kValueWords];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = c * 2 + i % 2 + i / 2 * 8;
        if constexpr (kValueBytes == 16) {
          const uint4 x = *reinterpret_cast<const uint4*>(here + P::at(key, g + 8 * l));
          v[i][0] = x.x, v[i][1] = x.y, v[i][2] = x.z, v[i][3] = x.w;
        } else {
          const uint2 x = *reinterpret_cast<const uint2*>(here + P::at(key, 0) + g * 8);
          v[i][0] = x.x, v[i][1] = x.y;
        }
      }
      constexpr int kTurns = kValueLanes / 2;
#pragma unroll
      for (int m = 0; m < kTurns; ++m) {
        uint32_t pairs[4];
        if constexpr (kWidens) {
          const unsigned order = m % 2 == 0 ? 0x5140 : 0x7362;  // bytes of both keys alternate
          const uint32_t near = __byte_perm(v[0][m / 2], v[1][m / 2], order),
                         far = __byte_perm(v[2][m / 2], v[3][m / 2], order);
          const uint2 low = widen_four(near), high = widen_four(far);
          pairs[0] = low.x, pairs[1] = low.y, pairs[2] = high.x, pairs[3] = high.y;
        } else {
          pairs[0] = __byte_perm(v[0][m], v[1][m], 0x5410), pairs[1] = __byte_perm(v[0][m], v[1][m], 0x7632);
          pairs[2] = __byte_perm(v[2][m], v[3][m], 0x5410), pairs[3] = __byte_perm(v[2][m], v[3][m], 0x7632);
        }
        multiply(sums[l * kTurns + m], pairs, weights[0], weights[1], H{});
        if (!kFew) multiply(sums[l * kTurns + m], pairs, rests[0], rests[1], H{});
      }
    }
    sync_warp();
    fetch(slot, P::kSlots % 2 == 0);
    slot = slot + 1 == P::kSlots ? 0 : slot + 1;
  }
#pragma unroll
  for (int e = 0; e < kOwn; ++e) {
#pragma unroll
    for (int mask = kFew ? 4 : 1; mask < (kFew ? 32 : 4); mask *= 2)
      weight[e] += shuffle_xor(weight[e], mask);
    if (kFew ? g == 0 && c < 2 : c == 0) warp_stats[warp][kFew ? c * 2 + e : g] = {largest[e], weight[e]};
  }
  if constexpr (kFew) {  // what rests of weights have added
#pragma unroll
    for (int m = 0; m < kSteps; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[m][e] += shuffle_xor(sums[m][e], 2);
    }
  }
  await_copies<0>();  // none, but copies may not lie behind
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int head = c * 2 + e;
    if (head >= group) break;
#pragma unroll
    for (int m = 0; m < kSteps; m += 2) {
      constexpr int kTurns = kValueLanes / 2;
      const int d = (m / kTurns * 8 + g) * kValueLanes + m % kTurns * 2;
      *reinterpret_cast<float4*>(ring + (head * kDim + d) * 4) = {sums[m][e], sums[m][e + 2], sums[m + 1][e],
                                                                  sums[m + 1][e + 2]};
    }
  }
  __syncthreads();

  const int stride = heads_of_block(a.heads_per_kv), team = split / a.team;
  float* partial = a.partials + pair * partial_floats(a.splits / a.team, stride, kDim);
  auto* partial_sums = reinterpret_cast<float4*>(partial + stats_floats(a.splits / a.team, stride) +
                                                 int64_t{team} * stride * kDim);
  auto finish = [&](int i, float top, float total, float4 sum) {
    const int item = item_of(i);
    if (teams > 1) {
      partial_sums[item] = sum;
      if (item % kFours == 0)
        reinterpret_cast<float2*>(partial)[team * stride + item / kFours] = {top, total};
      return;
    }
    total += power_of_two((i == 0 ? first_sink : sink_of(i)) - top);
    const float scale = a.value_scale / total;
    sum = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
    if (gate != nullptr) {
      const float4 x = i == 0 ? first_gate : reinterpret_cast<const float4*>(gate)[item];
      sum = {gated(sum.x, x.x), gated(sum.y, x.y), gated(sum.z, x.z), gated(sum.w, x.w)};
    }
    store_four<kDim>(a, row, head0, item, sum);
  };
  // The sums of the block's warps, then those of the cluster's blocks.
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int item = i * kThreads + static_cast<int>(threadIdx.x);
    if (item >= items) break;
    const int head = item / kFours;
    float top = kNone;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, warp_stats[w][head].x);
    float total = 0;
    float4 sum = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 stats = warp_stats[w][head];
      const float share = power_of_two(stats.x - top);
      total += share * stats.y;
      sum = add_scaled(sum, share, reinterpret_cast<const float4*>(memory + w * P::kRing)[item]);
    }
    if (mates == 1) {
      finish(i, top, total, sum);
      continue;
    }
    reinterpret_cast<float4*>(memory)[item] = sum;
    if (item % kFours == 0) block_stats[head] = {top, total};
  }
  if (mates > 1) {
    sync_warp();
    arrive_at_cluster();
    await_cluster();
#pragma unroll
    for (int i = 0; i < (kItems + 1) / 2; ++i) {
      const int item = item_of(i);
      if (item >= items) break;
      float2 stats[kTeam];
      float4 sums_of[kTeam];
#pragma unroll
      for (int m = 0; m < kTeam; ++m) {
        stats[m] = {kNone, 0};
        sums_of[m] = {};
        if (m >= mates) continue;
        stats[m] = load_from(block_stats + item / kFours, m);
        sums_of[m] = load_from(reinterpret_cast<const float4*>(memory) + item, m);
      }
      float top = kNone, total = 0;
      float4 sum = {};
#pragma unroll
      for (int m = 0; m < kTeam; ++m) top = fmaxf(top, stats[m].x);
#pragma unroll
      for (int m = 0; m < kTeam; ++m) {
        const float share = power_of_two(stats[m].x - top);
        total += share * stats[m].y;
        sum = add_scaled(sum, share, sums_of[m]);
      }
      finish(i, top, total, sum);
    }
    sync_warp();
    arrive_at_cluster();
    await_cluster();  // nobody leaves while others read what it has
  }
  if (teams == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    merges = atomicAdd(a.counters + pair, 1) == active - 1;
    if (merges) a.counters[pair] = 0;
  }
  __syncthreads();
  if (!merges) return;
  __threadfence();
  merge_teams<kDim>(a, pair, teams, row, group, head0, reinterpret_cast<float*>(memory), gate);
}

}  // namespace
}  // namespace atom::ops::gpu_kernels
