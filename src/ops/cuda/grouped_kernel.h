// The kernel of grouped products on Hopper. Device code only; grouped_*.cu instantiate it.
//   out[x row] = w x + bias;  gated: act(w x + bias, up x + up_bias)
// Bound: the bytes of the weights for few rows of x per matrix, tensor cores for many. As many blocks as fit
// stay and share all work: it is counted in stages, one tile of rows of w times kTileBytes of its columns, in
// the order tile of x within tile of w within expert. One warp of a block fetches stages ahead with the copy
// engine, weights as they are stored; the others widen 16 rows each in registers, where what ldmatrix gives
// is a fragment of the product as it stands, and multiply with x in shared memory: for few rows each warp
// alone, for more four warps together. A gated tile has the rows of gate and up alternate by 8, so that a
// thread has both of a row. Where a block begins or ends within a tile, its sums go to memory and the last
// block to arrive adds them up, in the order of columns.
#pragma once
#include <bit>

#include "ops/cuda/grouped_results.h"

namespace atom::ops::gpu_kernels {

#if ATOM_HOPPER

// ---- Fetching.

template <class T, int kN>
__device__ void fetch_weights(const GroupedProduct& a, const Walk& at, uint32_t stage, uint64_t& full) {
  using C = Cut<T, kN>;
  arrive_expecting(full, C::kFetchedBytes);
  const CUtensorMap& second = a.gated ? a.up_map : a.w_map;
  if constexpr (C::kPieced) {
    constexpr int kEights = C::kHalfRows / kPieceRows;  // rows of the maps
    const int row = at.row_tile * kEights * (a.gated ? 1 : 2), second_row = a.gated ? row : row + kEights;
    const int stages = a.runs.pieces / kPieceStep, run = at.k / stages, part = at.k - run * stages;
    const int begin = run * a.runs.bytes, piece = begin + part * C::kPiecesBytes,
              scale = begin + a.runs.pieces * kPieceBytes + part * C::kScalesBytes;
    fetch_tile(stage, a.w_map, piece / kMapUnit, row, at.tile.expert, full);
    fetch_tile(stage + C::kHalfBytes, second, piece / kMapUnit, second_row, at.tile.expert, full);
    const uint32_t scales = stage + 2 * C::kHalfBytes;
    fetch_tile(scales, a.scale_map, scale / kMapUnit, row, at.tile.expert, full);
    fetch_tile(scales + C::kHalfScales, a.gated ? a.up_scale_map : a.scale_map, scale / kMapUnit, second_row,
               at.tile.expert, full);
  } else {
    const int row = at.row_tile * C::kHalfRows * (a.gated ? 1 : 2), col = at.k * kTileBytes;
    fetch_tile(stage, a.w_map, col, row, at.tile.expert, full);
    fetch_tile(stage + C::kHalfBytes, second, col, a.gated ? row : row + C::kHalfRows, at.tile.expert, full);
  }
}
template <class T, int kN>
__device__ void fetch_x(const GroupedProduct& a, const Walk& at, uint32_t stage, uint64_t& full) {
  using C = Cut<T, kN>;
#pragma unroll
  for (int i = 0; i < C::kSlices; ++i) {
    fetch_tile(stage + C::kXBegin + i * kN * kTileBytes, a.x_map, (at.k * C::kSlices + i) * kTileBytes,
               at.tile.begin, 0, full);
  }
}
template <class T, int kN>
__device__ void fetch(const GroupedProduct& a, uint32_t memory, uint64_t* full, uint64_t* empty, int lane) {
  using C = Cut<T, kN>;
  if (lane == 0) {
    fetch_map(a.w_map);
    fetch_map(a.x_map);
    if (a.gated) fetch_map(a.up_map);
  }
  int ahead = 0;
  if (a.tiles == nullptr) {  // weights of one known matrix may be read before the kernels in front have ended
    Walk early(a, kN, C::kWhole);
    for (; early.left > 0 && ahead < C::kStages; early.next(a, kN), ++ahead) {
      if (lane == 0) fetch_weights<T, kN>(a, early, memory + ahead * C::kStageBytes, full[ahead]);
    }
  }
  wait_for_previous();
  Walk at(a, kN, C::kWhole);
  for (int i = 0, slot = 0, round = 0; at.left > 0; at.next(a, kN), ++i) {
    const uint32_t stage = memory + slot * C::kStageBytes;
    if (lane == 0) {
      if (i >= ahead) {
        if (round > 0) await(empty[slot], (round + 1) & 1);
        fetch_weights<T, kN>(a, at, stage, full[slot]);
      }
      fetch_x<T, kN>(a, at, stage, full[slot]);
    }
    sync_warp();
    if (++slot == C::kStages) slot = 0, ++round;
  }
}

// ---- Multiplying.

// Where a lane finds its part of 16 rows of w in a stage, for each of a warp's tiles: its row for ldmatrix,
// lane % 8 of its matrix. In pieces: its eight bytes of the first and second 8 rows, then its scales of both.
template <class T, int kN>
inline constexpr int kLaneRows = Cut<T, kN>::kPieced ? 4 : Cut<T, kN>::kM;
template <class T, int kN>
using LaneRows = uint32_t[kLaneRows<T, kN>];

// The fragments of part p of a warp's tiles: 32 bytes of 16 rows, four to a tile.
template <class T, int kRows>
__device__ void load_part(uint32_t (&out)[kPieceSteps<T>][4], const uint32_t (&rows)[kRows], int p,
                          int lane) {
  uint32_t raw[4];
  load_matrices_at(raw, rows[p / 4] + (((2 * (p % 4) + lane / 16) ^ (lane % 8)) << 4));
#pragma unroll
  for (int i = 0; i < 4; ++i) widen_matrix(raw[i], i, out, T{});
}
// The same in pieces; the scales lie behind the elements.
template <bool kLarge>
__device__ void widen_pieces(const uint2 (&raw)[2], const uint32_t (&scales)[2], uint32_t (&out)[4][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      uint32_t pairs[4];
      widen_piece_word<kLarge>(b == 0 ? raw[h].x : raw[h].y, b == 0 ? scales[h] & 0xFFu : scales[h] >> 8,
                               pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[2 * b + i / 2][h + i % 2 * 2] = pairs[i];
    }
  }
}
template <>
__device__ inline void load_part<Fp4Pieces, 4>(uint32_t (&out)[4][4], const uint32_t (&rows)[4], int p,
                                               int lane) {
  uint2 raw[2];
  uint32_t scales[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    raw[h] = load_shared_8(rows[h] + p * kPieceBytes);
    scales[h] = load_shared_2(rows[2 + h] + p * kPieceScaleBytes);
  }
  auto over = [](uint32_t two) { return max(two & 0xFFu, two >> 8) > 128; };
  if (ballot(over(scales[0]) || over(scales[1])) != 0) {
    widen_pieces<true>(raw, scales, out);
  } else {
    widen_pieces<false>(raw, scales, out);
  }
}

// kUsed: rows of the tile of x that are looked at.
template <class T, int kN, int kUsed>
__device__ void multiply_stage(float (&sums)[Cut<T, kN>::kM][kN / 2], const LaneRows<T, kN>& rows, uint32_t x,
                               const StageScales<T>& scales, int lane) {
  constexpr int kSteps = kPieceSteps<T>, kParts = Cut<T, kN>::kPieced ? kPieceStep : 4,
                kAll = kParts * Cut<T, kN>::kM, kTerms = kUsed / 2;
  constexpr int kPlaces = Cut<T, kN>::kPlaces;
  const uint64_t first_operand = tile_operand(x);
  auto operand = [&](int j, int s) {
    const int step = j * kSteps + s;
    return first_operand + (step / 4 * kN * kTileBytes + step % 4 * 32) / 16;
  };
  uint32_t w[kPlaces][kSteps][4];
  load_part<T>(w[0], rows, 0, lane);
  constexpr bool kFresh = std::is_same_v<T, Fp8>;  // sums of a stage are scaled
  float part[kFresh ? kTerms : 1];
#pragma unroll
  for (int p = 0; p < kAll; ++p) {
    begin_products();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if constexpr (kFresh) {
        multiply_tile(part, w[p % kPlaces][s], operand(p, s), p + s > 0, Bf16{});
      } else {
        float(&to)[kTerms] = reinterpret_cast<float(&)[kTerms]>(sums[p / kParts]);
        multiply_tile(to, w[p % kPlaces][s], operand(p % kParts, s), true, Bf16{});
      }
    }
    end_products();
    await_products<kPlaces - 1>();  // those before read the fragments that are loaded now
    if (p + 1 < kAll) load_part<T>(w[(p + 1) % kPlaces], rows, p + 1, lane);
  }
  await_products<0>();
  if constexpr (kFresh) {
    settle(part);
#pragma unroll
    for (int i = 0; i < kTerms; ++i) sums[0][i] += part[i] * scales.row[i % 4 / 2];
  } else {
#pragma unroll
    for (int m = 0; m < Cut<T, kN>::kM; ++m) settle(sums[m]);
  }
}

// The same by each warp alone. `groups`: of 32 columns; less than all only if not kFull.
template <class T, int kN, bool kFull>
__device__ void multiply_stage_alone(float (&sums)[1][kN / 2], const LaneRows<T, kN>& rows, uint32_t x,
                                     const StageScales<T>& scales, int lane, int groups) {
  constexpr int kSteps = kPieceSteps<T>, kGroups = Cut<T, kN>::kStageCols / 32;
  constexpr bool kFresh = std::is_same_v<T, Fp8>;
  // Four pieces of 16 bytes of 8 rows of x are the fragments of 32 columns.
  uint32_t x_at[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) x_at[e] = x + lane % 8 * kTileBytes + (((4 * e + lane / 8) ^ (lane % 8)) << 4);
  float fresh[kFresh ? kN / 8 : 1][4] = {};
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (!kFull && g >= groups) break;
    uint32_t w[2][4];
    if constexpr (kSteps == 1) {
#pragma unroll
      for (int s = 0; s < 2; ++s)
        load_part<T>(reinterpret_cast<uint32_t(&)[1][4]>(w[s]), rows, 2 * g + s, lane);
    } else {
      load_part<T>(w, rows, g, lane);
    }
#pragma unroll
    for (int t = 0; t < kN / 8; ++t) {
      uint32_t b[4];
      load_matrices_at(b, x_at[g % 2] + g / 2 * kN * kTileBytes + t * 8 * kTileBytes);
      float(&to)[4] = kFresh ? fresh[kFresh ? t : 0] : reinterpret_cast<float(&)[4]>(sums[0][4 * t]);
      multiply(to, w[0], b[0], b[1], Bf16{});
      multiply(to, w[1], b[2], b[3], Bf16{});
    }
  }
  if constexpr (kFresh) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sums[0][i] += fresh[i / 4][i % 4] * scales.row[i % 4 / 2];
  }
}

// ---- The block.

template <class T, int kN>
__device__ void compute(const GroupedProduct& a, uint32_t memory, uint64_t* full, uint64_t* empty, int warp,
                        int lane) {
  using C = Cut<T, kN>;
  LaneRows<T, kN> rows;  // in a stage
  if constexpr (C::kPieced) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int half = a.gated ? h : 0, eight = a.gated ? warp : 2 * warp + h;
      rows[h] = half * C::kHalfBytes + eight * C::kPiecesBytes + lane * 8;
      // Plain tiles have the scales of their halves apart, too.
      constexpr int kEights = C::kHalfRows / kPieceRows;
      const int scale_half = a.gated ? h : eight / kEights, scale_eight = a.gated ? warp : eight % kEights;
      rows[2 + h] =
          2 * C::kHalfBytes + scale_half * C::kHalfScales + scale_eight * C::kScalesBytes + lane / 4 * 2;
    }
  } else {
#pragma unroll
    for (int m = 0; m < C::kM; ++m) {
      const int slab = (warp / 4 * C::kM + m) * 4 + warp % 4, second = lane / 8 % 2;
      const int row = a.gated ? second * C::kHalfRows + slab * 8 : slab * 16 + second * 8;
      rows[m] = (row + lane % 8) * kTileBytes;
    }
  }
  // Of this thread's rows; beyond the end: the last row, which is not stored.
  auto scale_rows = [&](const Walk& at) {
    ScaleRows s{};
    if constexpr (std::is_same_v<T, Fp8>) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const ExpertMatrix& m = h == 1 && a.gated ? a.up : a.w;
        const int row = a.gated ? at.row_tile * C::kHalfRows + warp * 8
                                : at.row_tile * 2 * C::kHalfRows + warp * 16 + h * 8;
        s.row[h] =
            m.first.scales + at.tile.expert * m.scale_step +
            (min(row + lane / 4, a.rows - 1) + m.first.first_row) / m.first.block_rows * m.first.scale_stride;
      }
    }
    return s;
  };
  wait_for_previous();
  Walk next(a, kN, C::kWhole);
  if (next.left <= 0) return;
  ScaleRows from = scale_rows(next);
  StageScales<T> next_scales;
  load_scales(next_scales, a, from, next.k);
  float sums[C::kM][kN / 2] = {};
  int first_k = next.k;
  for (int slot = 0, round = 0; next.left > 0;) {
    const Walk at = next;
    const StageScales<T> scales = next_scales;
    next.next(a, kN);
    if (next.left > 0) {
      if (next.k == 0) from = scale_rows(next);
      load_scales(next_scales, a, from, next.k);
    }
    const uint32_t stage = memory + slot * C::kStageBytes;
    await(full[slot], round & 1);
    const uint32_t x = stage + C::kXBegin;
    LaneRows<T, kN> here;

#pragma unroll
    for (int i = 0; i < kLaneRows<T, kN>; ++i) here[i] = stage + rows[i];
    if constexpr (C::kAlone) {
      constexpr int kGroups = C::kStageCols / 32;
      const int groups = (a.cols - at.k * C::kStageCols + 31) / 32;
      if (groups >= kGroups) {
        multiply_stage_alone<T, kN, true>(sums, here, x, scales, lane, kGroups);
      } else {
        multiply_stage_alone<T, kN, false>(sums, here, x, scales, lane, groups);
      }
    } else if (kN == 128 && at.tile.count <= kN / 2) {  // the last tile of an expert is often nearly empty
      multiply_stage<T, kN, kN / 2>(sums, here, x, scales, lane);
    } else {
      multiply_stage<T, kN, kN>(sums, here, x, scales, lane);
    }
    sync_warp();
    if (lane == 0) arrive(empty[slot]);
    if (++slot == C::kStages) slot = 0, ++round;
    if (at.k + 1 < a.k_stages && next.left > 0) continue;
    const bool whole = first_k == 0 && at.k + 1 == a.k_stages;
    if (whole || merge<C::kWarps>(a, at, sums, warp, lane)) store<T, kN>(a, at, sums, warp, lane);
#pragma unroll
    for (int m = 0; m < C::kM; ++m) {
#pragma unroll
      for (int j = 0; j < kN / 2; ++j) sums[m][j] = 0;
    }
    first_k = 0;
  }
}

#endif  // ATOM_HOPPER

template <class T, int kN>
__global__ void __launch_bounds__(Cut<T, kN>::kThreads, Cut<T, kN>::kBlocks)
    grouped_kernel(const __grid_constant__ GroupedProduct a) {
#if ATOM_HOPPER
  using C = Cut<T, kN>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[C::kStages], empty[C::kStages];
  const uint32_t stages = (shared_address(memory) + 1023) & ~1023u;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      start_barrier(full[s], 1);
      start_barrier(empty[s], C::kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  let_next_start();
  if (warp == C::kWarps) {
    fetch<T, kN>(a, stages, full, empty, lane);
  } else {
    compute<T, kN>(a, stages, full, empty, warp, lane);
  }
#endif
}

// Starts the kernel of one type for any tile; defined in grouped_*.cu.
using GroupedStart = void(Stream&, const GroupedProduct&, const void* x, int64_t x_bound, int tile);
GroupedStart start_grouped_bf16, start_grouped_fp8, start_grouped_pieces;

// Describes the matrices to the copy engine and starts as many blocks as fit. x is dense.
template <class T, int kN>
void start_tiles(Stream& stream, GroupedProduct a, const void* x, int64_t x_bound) {
  using C = Cut<T, kN>;
  gpu::Queue& queue = stream.queue();
  if (queue.planning()) return;
  a.row_tiles = static_cast<int>(ceil_div(a.rows, C::kHalfRows * (a.gated ? 1 : 2)));
  a.k_stages = static_cast<int>(ceil_div(a.cols, C::kStageCols));
  const StoredMatrix& w = a.w.first;
  if (w.block_cols < w.first_col + a.cols)
    a.block_shift = std::countr_zero(static_cast<unsigned>(w.block_cols));
  a.counters = queue.counters();
  auto map = [&](const ExpertMatrix& m, int pieces_bytes) {
    const int eights = C::kPieced ? kPieceRows : 1;  // rows of a row of the map
    const int64_t row_bytes = C::kPieced ? piece_bytes(kPieceRows, a.cols) : dtype_bytes(a.type, a.cols);
    return map_tensor({.data = m.first.data,
                       .row_bytes = row_bytes,
                       .rows = a.rows / eights,
                       .row_stride = C::kPieced ? row_bytes : m.first.stride,
                       .matrices = a.experts.count,
                       .matrix_stride = m.data_step,
                       .tile_rows = C::kHalfRows / eights,
                       .run_bytes = pieces_bytes});
  };
  a.w_map = map(a.w, C::kPieced ? C::kPiecesBytes : 0);
  if (a.gated) a.up_map = map(a.up, C::kPieced ? C::kPiecesBytes : 0);
  if constexpr (C::kPieced) {
    a.runs = piece_runs(a.cols);
    a.scale_map = map(a.w, C::kScalesBytes);
    if (a.gated) a.up_scale_map = map(a.up, C::kScalesBytes);
  }
  a.x_map = map_tensor({.data = x,
                        .row_bytes = int64_t{2} * a.cols,
                        .rows = x_bound,
                        .row_stride = int64_t{2} * a.cols,
                        .tile_rows = kN});
  launch(queue, grouped_kernel<T, kN>, dim3(static_cast<unsigned>(queue.processors() * C::kBlocks)),
         dim3(C::kThreads), C::kStages * C::kStageBytes + 1024, a);
}

template <class T>
void start_grouped_any(Stream& stream, const GroupedProduct& a, const void* x, int64_t x_bound, int tile) {
  if constexpr (!std::is_same_v<T, Fp4Pieces>) {  // those of few rows: piece_kernel.h
    if (tile <= 8) return start_tiles<T, 8>(stream, a, x, x_bound);
    if (tile <= 16) return start_tiles<T, 16>(stream, a, x, x_bound);
  }
  if (tile <= 32) return start_tiles<T, 32>(stream, a, x, x_bound);
  if (tile <= 64) return start_tiles<T, 64>(stream, a, x, x_bound);
  start_tiles<T, 128>(stream, a, x, x_bound);
}

}  // namespace atom::ops::gpu_kernels
