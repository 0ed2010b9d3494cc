// The kernel of prompts' attention on Hopper. Device code only; attention_hopper.cu instantiates it.
//   out[row, h] = sum over visible keys of softmax(scale * q·k) v, with q and the weights rounded to the
//   cache's type
// Bound: tensor cores, 4 * head_dim operations per visible key, row and head. As many blocks as fit stay and
// take tiles of query vectors, some rows with all query heads of one kv head each, in an order that gives
// every block long and short ones. One warp of a block fetches tiles of keys and of values with the copy
// engine, box by box as blocks of the cache lie. The other groups of four warps have 64 vectors each: scores
// of a tile and the sums of the tile before it are computed together, while another group weighs its scores,
// which is as much work for the other units (FlashAttention-3, arXiv 2407.08608).
#pragma once
#include "ops/cuda/attention_products.h"
#include "ops/cuda/prompt_tiles.h"

namespace atom::ops::gpu_kernels {

struct PromptArguments {
  CUtensorMap k_map, v_map;  // matrices: blocks of the cache; rows: slots of all kv heads
  void* out;                 // float32 or, if it `rounds`, bf16
  bool rounds;
  const float* q;
  const float* sinks;
  int64_t out_stride, q_stride;
  Sequences sequences;
  int heads, kv_heads, block_size, window;
  int box;  // keys of one copy
  float scale, value_scale;
};

// How a block divides its work: groups of 64 query vectors, tiles of keys, tiles that are fetched ahead.
template <class T_, int kDim_, int kKeys_, int kGroups_, int kStages_>
struct PromptCut {
  using T = T_;
  static constexpr int kDim = kDim_, kKeys = kKeys_, kGroups = kGroups_, kStages = kStages_;
  static constexpr int kVectors = 64 * kGroups;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kColumns = kDim / 64;  // of 128 bytes, which lie one behind the other
  static constexpr int kQueryBytes = 64 * kDim * 2, kTileBytes = kKeys * kDim * 2;
  static constexpr int kShared = kGroups * kQueryBytes + 2 * kStages * kTileBytes + 1024;
  // 64 Ki registers, dealt so that sums, scores and weights fit.
  static constexpr int kFetchRegisters = kGroups == 2 ? 40 : 32;
  static constexpr int kWeighRegisters = kGroups == 2 ? 232 : 160;
};

#if ATOM_HOPPER

template <int kRegisters>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Barriers of `threads` threads by number; 0 is __syncthreads.
__device__ inline void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void announce(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// What this thread has stored to shared memory is seen by products and copies after the next barrier.
__device__ inline void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void store_shared(uint32_t address, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

// One piece of a block's work and the keys that it sees.
template <class C>
struct PromptTile {
  AttentionSequence s;
  int kv_head;
  int first_row, rows;  // in the sequence
  int oldest, begin, end,
      tiles;  // begin: where the first tile of keys does, which has the oldest visible one

  // False: none is left. Every second round goes through the blocks backwards, since tiles get shorter.
  __device__ bool find(const PromptArguments& a, int round) {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    const int index = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
    const int rows_per_tile = C::kVectors / (a.heads / a.kv_heads);
    int sequence = 0, tile = 0;
    if (!find_tile(a.sequences, index / a.kv_heads, rows_per_tile, sequence, tile)) return false;
    kv_head = index % a.kv_heads;
    s = a.sequences.data[sequence];
    first_row = tile * rows_per_tile;
    rows = min(rows_per_tile, s.rows - first_row);
    oldest = a.window > 0 ? max(0, s.context + first_row - a.window + 1) : 0;
    begin = oldest / C::kKeys * C::kKeys;
    end = s.context + first_row + rows;
    tiles = (end - begin + C::kKeys - 1) / C::kKeys;
    return true;
  }
};

template <class C>
struct PromptBarriers {
  uint64_t k_full[C::kStages], k_empty[C::kStages], v_full[C::kStages], v_empty[C::kStages];
};

// Counts through stages; `parity` is that of the current round.
template <class C>
struct StageCounter {
  int slot = 0, parity = 0;
  __device__ void next() {
    if (++slot == C::kStages) slot = 0, parity ^= 1;
  }
};

// ---- One warp fetches.

template <class C>
__device__ void fetch_prompt(const PromptArguments& a, uint32_t k_memory, uint32_t v_memory,
                             PromptBarriers<C>& barriers, int lane) {
  if (lane == 0) {
    fetch_map(a.k_map);
    fetch_map(a.v_map);
  }
  const int boxes = C::kKeys / a.box, box_bytes = a.box * C::kDim * 2;
  PromptTile<C> t;
  // Lanes have a box each. Those without a visible key are left out; their blocks may be gone.
  auto fetch = [&](const CUtensorMap& map, uint32_t memory, StageCounter<C>& stage, uint64_t* full,
                   uint64_t* empty, int first_key) {
    const int key = first_key + lane * a.box;
    const bool valid = lane < boxes && key < t.end && key + a.box > t.oldest;
    const int block = valid ? t.s.block_table[key / a.block_size] : 0;
    const int row = t.kv_head * a.block_size + key % a.block_size;
    const int bytes = __popc(__ballot_sync(~0u, valid)) * box_bytes;
    await(empty[stage.slot], stage.parity ^ 1);
    if (lane == 0) arrive_expecting(full[stage.slot], bytes);
    sync_warp();
    if (valid) {
      const uint32_t to = memory + stage.slot * C::kTileBytes + lane * a.box * kTileBytes;
#pragma unroll
      for (int c = 0; c < C::kColumns; ++c)
        fetch_tile(to + c * C::kKeys * kTileBytes, map, c * kTileBytes, row, block, full[stage.slot]);
    }
    stage.next();
  };
  StageCounter<C> k_stage, v_stage;
  for (int round = 0; t.find(a, round); ++round) {
    for (int i = 0; i <= t.tiles; ++i) {
      const int first_key = t.begin + i * C::kKeys;
      if (i < t.tiles) fetch(a.k_map, k_memory, k_stage, barriers.k_full, barriers.k_empty, first_key);
      if (i > 0) fetch(a.v_map, v_memory, v_stage, barriers.v_full, barriers.v_empty, first_key - C::kKeys);
    }
  }
}

// ---- Groups of four warps compute.

// 64 query vectors to shared memory, scaled; absent ones are zeros.
template <class C>
__device__ void place_queries(const PromptArguments& a, const PromptTile<C>& t, uint32_t memory, int group,
                              int thread) {
  constexpr int kPieces = C::kDim / 8, kMine = 64 * kPieces / 128;  // of 8 elements
  const int sharing = a.heads / a.kv_heads;
  const float scale = a.scale * kLog2e;
  const float* q = a.q + (t.s.first_row + t.first_row) * a.q_stride + int64_t{t.kv_head} * sharing * C::kDim;
#pragma unroll 8
  for (int m = 0; m < kMine; ++m) {
    const int i = thread + m * 128, vector = i / kPieces, piece = i % kPieces;
    const int of_tile = group * 64 + vector, row = of_tile / sharing;
    float4 x = {}, y = {};
    if (row < t.rows) {
      const auto* from = reinterpret_cast<const float4*>(q + row * a.q_stride +
                                                         int64_t{of_tile % sharing} * C::kDim + piece * 8);
      x = from[0], y = from[1];
    }
    using T = typename C::T;
    store_shared(memory + piece / 8 * 64 * kTileBytes + vector * kTileBytes + ((piece % 8 ^ vector % 8) << 4),
                 pack(x.x * scale, x.y * scale, T{}), pack(x.z * scale, x.w * scale, T{}),
                 pack(y.x * scale, y.y * scale, T{}), pack(y.z * scale, y.w * scale, T{}));
  }
}

// Zeros for the values of `count` keys from `first` of a tile on: what lies there may not be numbers.
template <class C>
__device__ void hide_values(uint32_t memory, int first, int count, int thread) {
  constexpr int kPieces = C::kDim / 8;
  for (int i = thread; i < count * kPieces; i += 128) {
    const int key = first + i / kPieces, piece = i % kPieces;
    store_shared(memory + piece / 8 * C::kKeys * kTileBytes + key * kTileBytes + piece % 8 * 16, 0, 0, 0, 0);
  }
}

template <class C>
__device__ void weigh_prompt(const PromptArguments& a, uint32_t q_memory, uint32_t k_memory,
                             uint32_t v_memory, PromptBarriers<C>& barriers, int group) {
  using T = typename C::T;
  constexpr int kKeys = C::kKeys, kDim = C::kDim;
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32, warp = thread / 32;
  const int own_barrier = 1 + group, my_turn = 1 + C::kGroups + group,
            next_turn = 1 + C::kGroups + (group + 1) % C::kGroups;
  auto await_turn = [&] {
    if constexpr (C::kGroups > 1) meet(my_turn, 256);
  };
  auto pass_turn = [&] {
    if constexpr (C::kGroups > 1) announce(next_turn, 256);
  };
  auto release = [&](uint64_t& empty) {
    sync_warp();
    if (lane == 0) arrive(empty);
  };
  if (group == C::kGroups - 1) pass_turn();

  q_memory += group * C::kQueryBytes;
  const uint64_t q_operand = swizzled_operand(q_memory);
  const int sharing = a.heads / a.kv_heads;
  StageCounter<C> k_stage, v_stage;
  PromptTile<C> t;
  for (int round = 0; t.find(a, round); ++round) {
    meet(own_barrier, 128);  // products of the last tile have read its queries
    place_queries<C>(a, t, q_memory, group, thread);
    publish_stores();
    meet(own_barrier, 128);

    // This thread has vectors `warp * 16 + lane / 4` and 8 behind it.
    const int first_position = t.s.context + t.first_row;
    int row[2], position[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row[i] = (group * 64 + warp * 16 + lane / 4 + 8 * i) / sharing;
      position[i] = first_position + min(row[i], t.rows - 1);
    }

    float scores[kKeys / 2], sums[kDim / 2] = {};
    uint32_t weights[kKeys / 16][4];
    float largest[2] = {kNone, kNone}, weight[2] = {0, 0}, correction[2];
    auto multiply_keys = [&] {
      const uint64_t k_operand = swizzled_operand(k_memory + k_stage.slot * C::kTileBytes);
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step) {
        const int inside = step % 4 * 32;
        multiply_rows(scores, q_operand + (step / 4 * 64 * kTileBytes + inside) / 16,
                      k_operand + (step / 4 * kKeys * kTileBytes + inside) / 16, step > 0, T{});
      }
      end_products();
    };
    auto multiply_values = [&] {
      const uint64_t v_operand =
          swizzled_operand(v_memory + v_stage.slot * C::kTileBytes, kKeys * kTileBytes);
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step)
        multiply_columns(sums, weights[step], v_operand + step * 16 * kTileBytes / 16, T{});
      end_products();
    };
    // The next values to multiply, of this tile: those that no row sees become zeros.
    auto await_values = [&](int tile) {
      await(barriers.v_full[v_stage.slot], v_stage.parity);
      const int first_key = t.begin + tile * kKeys, before = max(0, t.oldest - first_key),
                behind = max(0, first_key + kKeys - t.end);
      if (before + behind == 0) return;
      const uint32_t values = v_memory + v_stage.slot * C::kTileBytes;
      hide_values<C>(values, 0, before, thread);
      hide_values<C>(values, kKeys - behind, behind, thread);
      publish_stores();
      meet(own_barrier, 128);
    };
    // Scores of a tile become weights of what is largest so far; `correction` brings sums to the same.
    auto weigh = [&](int tile) {
      const int first_key = t.begin + tile * kKeys;
      const bool whole =
          first_key + kKeys <= first_position + 1 && (a.window == 0 || first_key > t.end - 1 - a.window);
      if (!whole) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int last = position[i] - first_key - lane % 4 * 2;
          const int before = a.window > 0 ? last - a.window : -kKeys;
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int key = n * 8 + e;
              if (key > last || key <= before) scores[4 * n + 2 * i + e] = kNone;
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float top = largest[i];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
          top = fmaxf(top, fmaxf(scores[4 * n + 2 * i], scores[4 * n + 2 * i + 1]));
        top = fmaxf(top, shuffle_xor(top, 1));
        top = fmaxf(top, shuffle_xor(top, 2));
        correction[i] = power_of_two(largest[i] - top);
        largest[i] = top;
        // A row that has seen only masked keys would count them: its largest is still kNone.
        const float base = top == kNone ? 0 : top;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int e = 2 * i; e < 2 * i + 2; ++e) {
            scores[4 * n + e] = power_of_two(scores[4 * n + e] - base);
            sum += scores[4 * n + e];
          }
        }
        weight[i] = weight[i] * correction[i] + sum;
      }
    };
    auto round_weights = [&] {
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
        for (int part = 0; part < 4; ++part)
          weights[step][part] = pack(scores[8 * step + 2 * part], scores[8 * step + 2 * part + 1], T{});
      }
    };

    await(barriers.k_full[k_stage.slot], k_stage.parity);
    begin_products();
    multiply_keys();
    await_products<0>();
    settle(scores);
    release(barriers.k_empty[k_stage.slot]);
    k_stage.next();
    weigh(0);
    await_values(0);
    round_weights();
    for (int tile = 1; tile < t.tiles; ++tile) {
      await(barriers.k_full[k_stage.slot], k_stage.parity);
      await_turn();
      begin_products();
      multiply_keys();
      multiply_values();
      pass_turn();
      const int v_slot = v_stage.slot;
      v_stage.next();
      await_products<1>();
      settle(scores);
      release(barriers.k_empty[k_stage.slot]);
      k_stage.next();
      weigh(tile);
      await_values(tile);
      await_products<0>();
      settle(sums);
      release(barriers.v_empty[v_slot]);
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) sums[i] *= correction[i % 4 / 2];
      round_weights();
    }
    begin_products();
    multiply_values();
    await_products<0>();
    settle(sums);
    release(barriers.v_empty[v_stage.slot]);
    v_stage.next();

#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = weight[i];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      if (row[i] >= t.rows) continue;
      const int head = t.kv_head * sharing + (group * 64 + warp * 16 + lane / 4 + 8 * i) % sharing;
      if (a.sinks != nullptr) total += power_of_two(a.sinks[head] * kLog2e - largest[i]);
      const float inverse = a.value_scale / total;
      const int64_t first =
          (t.s.first_row + t.first_row + row[i]) * a.out_stride + int64_t{head} * kDim + lane % 4 * 2;
      auto store = [&](auto* out) {
#pragma unroll
        for (int d = 0; d < kDim / 8; ++d) {
          store_pair(out + first + d * 8, sums[4 * d + 2 * i] * inverse, sums[4 * d + 2 * i + 1] * inverse);
        }
      };
      a.rounds ? store(static_cast<Bf16*>(a.out)) : store(static_cast<float*>(a.out));
    }
  }
  if (group == 0) await_turn();  // nobody is left who passes it on
}

#endif  // ATOM_HOPPER

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) prompt_kernel(const __grid_constant__ PromptArguments a) {
#if ATOM_HOPPER
  extern __shared__ unsigned char memory[];
  __shared__ PromptBarriers<C> barriers;
  const uint32_t q_memory = (shared_address(memory) + 1023) & ~1023u;
  const uint32_t k_memory = q_memory + C::kGroups * C::kQueryBytes;
  const uint32_t v_memory = k_memory + C::kStages * C::kTileBytes;
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      for (uint64_t* full : {barriers.k_full, barriers.v_full}) start_barrier(full[s], 1);
      for (uint64_t* empty : {barriers.k_empty, barriers.v_empty}) start_barrier(empty[s], 4 * C::kGroups);
    }
    publish_barriers();
  }
  __syncthreads();
  let_next_start();
  wait_for_previous();
  // The same number for all lanes, as the compiler can see.
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    shrink_registers<C::kFetchRegisters>();
    if (threadIdx.x < 32) fetch_prompt<C>(a, k_memory, v_memory, barriers, static_cast<int>(threadIdx.x));
  } else {
    grow_registers<C::kWeighRegisters>();
    weigh_prompt<C>(a, q_memory, k_memory, v_memory, barriers, group - 1);
  }
#endif
}

}  // namespace atom::ops::gpu_kernels
