// The kernel of gate and up products of a full batch of decodes on Hopper, in one round of blocks. Device
// code only; wide_gated.cu instantiates it.
//   out = silu(x Gᵀ + bg) * (x Uᵀ + bu), x of up to 256 rows in bf16, sums in float32
// Bound: tensor cores. A block has all rows of x and 112 rows of G and of U, so that 14,336 results take 128
// blocks, one for each processor, where tiles of 256 x 128 take 1.7 rounds. Its sums are 7/8 of all
// registers, so no warp is there only to fetch: a thread of the first one does, when it has given its
// products. Blocks of a cluster fetch equal parts of x for each other.
#pragma once
#include "ops/cuda/cluster.h"
#include "ops/cuda/hopper.h"

namespace atom::ops::gpu_kernels {

template <int kCluster_ = 2, int kDepth_ = 32, int kBehind_ = 1>
struct WideGatedCut {
  static constexpr int kCluster = kCluster_;
  static constexpr int kRows = 256;  // of x, 128 for each group of four warps
  static constexpr int kHalf = 112;  // results of a block
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int kDepth = kDepth_;  // elements that a stage has of every row
  static constexpr int kStages = kDepth == 32 ? 7 : 3;
  static constexpr int kBehind = kBehind_;
  static constexpr int kRowBytes = 2 * kDepth;
  static constexpr int kXBytes = kRows * kRowBytes, kHalfBytes = kHalf * kRowBytes;
  static constexpr int kStageBytes = kXBytes + 2 * kHalfBytes;
  static constexpr int kShared = kStages * kStageBytes + 1024;
};

struct WideGatedArguments {
  CUtensorMap w_map, x_map;
  void* out;
  const float* bias;  // of gate, then of up; null: none
  int64_t out_stride;
  int rows, half, stages;  // stages: of kDepth columns
};

#if ATOM_HOPPER

// fetch_tile for all blocks of the cluster whose bits are in `blocks`: to the same place, and with the same
// barrier, in each.
__device__ inline void fetch_tile_for(uint32_t to, const CUtensorMap& map, int col, int row,
                                      uint64_t& barrier, int blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(col), "r"(row), "r"(0), "r"(shared_address(&barrier)), "h"(static_cast<uint16_t>(blocks))
      : "memory");
}
// arrive() at the barrier that another block has at this place.
__device__ inline void arrive_in(uint64_t& barrier, int block) {
  asm volatile(
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in(&barrier, block))
      : "memory");
}

#define ATOM_SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define ATOM_SUMS_16(i) ATOM_SUMS_4(i), ATOM_SUMS_4(i + 4), ATOM_SUMS_4(i + 8), ATOM_SUMS_4(i + 12)
// Rows of a stage as fetch_tile leaves them, as operands of products.
template <class G>
__device__ inline uint64_t rows_operand(uint32_t address) {
  constexpr uint64_t kPattern = G::kRowBytes == 64 ? 2 : 1;
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{1} << 16 |
         static_cast<uint64_t>(8 * G::kRowBytes >> 4) << 32 | kPattern << 62;
}
// c (+)= a bᵀ for 64 rows of a and 224 of b, 16 deep, both as fetch_tile leaves them. `add`: c holds a sum.
__device__ inline void multiply_wide(float (&c)[112], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %114, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
      "}, %112, %113, add, 1, 1, 0, 0;\n}"
      : ATOM_SUMS_16(0), ATOM_SUMS_16(16), ATOM_SUMS_16(32), ATOM_SUMS_16(48), ATOM_SUMS_16(64),
        ATOM_SUMS_16(80), ATOM_SUMS_16(96)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
#undef ATOM_SUMS_16
#undef ATOM_SUMS_4

#endif  // ATOM_HOPPER

template <class Out, class G>
__global__ void __launch_bounds__(G::kThreads, 1)
    wide_gated_kernel(const __grid_constant__ WideGatedArguments a) {
#if ATOM_HOPPER
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[G::kStages], empty[G::kStages];
  const uint32_t stages = (shared_address(memory) + 1023) & ~1023u;
  const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int first = static_cast<int>(blockIdx.x) * G::kHalf, rank = rank_in_cluster();
  const bool fetches = threadIdx.x == 0;

  auto fetch_weights = [&](int stage, int slot) {
    const uint32_t to = stages + slot * G::kStageBytes + G::kXBytes;
    arrive_expecting(full[slot], G::kStageBytes);
    fetch_tile(to, a.w_map, stage * G::kRowBytes, first, 0, full[slot]);
    fetch_tile(to + G::kHalfBytes, a.w_map, stage * G::kRowBytes, a.half + first, 0, full[slot]);
  };
  auto fetch_x = [&](int stage, int slot) {
    constexpr int kPart = G::kRows / G::kCluster;
    fetch_tile_for(stages + slot * G::kStageBytes + rank * kPart * G::kRowBytes, a.x_map,
                   stage * G::kRowBytes, rank * kPart, full[slot], (1 << G::kCluster) - 1);
  };

  if (fetches) {
    for (int s = 0; s < G::kStages; ++s) {
      start_barrier(full[s], 1);
      start_barrier(empty[s], G::kWarps * G::kCluster);
    }
    publish_barriers();
    for (int s = 0; s < min(G::kStages, a.stages); ++s) fetch_weights(s, s);
  }
  arrive_at_cluster();
  await_cluster();
  let_next_start();
  wait_for_previous();
  if (fetches) {
    for (int s = 0; s < min(G::kStages, a.stages); ++s) fetch_x(s, s);
  }

  float sums[2][G::kHalf];
  int slot = 0, parity = 0, last_slot = 0, fetch_slot = 0, fetch_parity = 0;
  const uint64_t x_operand = rows_operand<G>(stages + warp / 4 * 128 * G::kRowBytes);
  const uint64_t w_operand = rows_operand<G>(stages + G::kXBytes);
  for (int stage = 0; stage < a.stages; ++stage) {
    await(full[slot], parity);
    begin_products();
#pragma unroll
    for (int step = 0; step < G::kDepth / 16; ++step) {
      const int inside = (slot * G::kStageBytes + step * 32) / 16;
      multiply_wide(sums[0], x_operand + inside, w_operand + inside, stage + step > 0);
      multiply_wide(sums[1], x_operand + (inside + 64 * G::kRowBytes / 16), w_operand + inside,
                    stage + step > 0);
    }
    end_products();
    if (stage > 0) {
      await_products<1>();
      if (lane < G::kCluster) arrive_in(empty[last_slot], lane);
      const int next = stage - 1 - G::kBehind + G::kStages;
      if (stage > G::kBehind) {
        if (fetches && next < a.stages) {
          await(empty[fetch_slot], fetch_parity);
          fetch_weights(next, fetch_slot);
          fetch_x(next, fetch_slot);
        }
        if (++fetch_slot == G::kStages) fetch_slot = 0, fetch_parity ^= 1;
      }
    }
    last_slot = slot;
    if (++slot == G::kStages) slot = 0, parity ^= 1;
  }
  await_products<0>();
  settle(sums[0]);
  settle(sums[1]);
  arrive_at_cluster();

  const int row = warp / 4 * 128 + warp % 4 * 16 + lane / 4;
  auto* out = static_cast<Out*>(a.out) + row * a.out_stride;
#pragma unroll
  for (int n = 0; n < G::kHalf / 8; ++n) {
    const int col = first + n * 8 + lane % 4 * 2;
    if (col >= a.half) break;
    float2 gate = {}, up = {};
    if (a.bias != nullptr) {
      gate = {a.bias[col], a.bias[col + 1]};
      up = {a.bias[a.half + col], a.bias[a.half + col + 1]};
    }
    auto gated = [](float g, float u) { return __fdividef(g, 1 + __expf(-g)) * u; };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int below = i / 2 * 64 + i % 2 * 8, g = 4 * n + i % 2 * 2, u = g + G::kHalf / 2;
      const float(&s)[G::kHalf] = sums[i / 2];
      if (row + below < a.rows) {
        store_pair(out + below * a.out_stride + col, gated(s[g] + gate.x, s[u] + up.x),
                   gated(s[g + 1] + gate.y, s[u + 1] + up.y));
      }
    }
  }
  await_cluster();  // nobody fetches for a block that has left
#endif
}

}  // namespace atom::ops::gpu_kernels
