// The kernel of grouped products with MXFP4 in pieces for few rows of x per expert. Device code only.
//   out[x row] = w x + bias;  gated: act(w x + bias, up x + up_bias)
// Bound: the bytes of the weights. A block per processor; all 16 rows of all experts' matrices (8 of gate and
// the same 8 of up if gated), with the tile of x that they meet, are shared evenly. A warp multiplies 16
// whole rows, alone: it has a ring in shared memory, which it keeps filled by copies of runs of pieces, and
// an element's way from there is one load, a few instructions to widen it to f16, and the tensor core. x,
// f16, lies in shared memory in whole rows, and the tile that comes next if there is room.
#pragma once
#include "ops/cuda/grouped_results.h"

namespace atom::ops::gpu_kernels {

// Tiles of kN rows of x, of which kTiles have room in shared memory.
template <int kN, int kTiles>
struct PieceCut {
  static constexpr int kRows = kN, kXs = kTiles;
  // A stage is kPieces pieces of each of two runs; longer ones are read faster than more of them.
  static constexpr int kWarps = 12, kStages = 2, kPieces = 9;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRun = kPieces * kPieceBytes, kStageBytes = 2 * kRun;

  // Bytes between rows of x in shared memory, so that ldmatrix reads eight of them without conflicts.
  __host__ __device__ static int x_pitch(int cols) { return pieces_across(cols) * kPieceCols * 2 + 16; }
  static int64_t memory(int cols) {
    return int64_t{kN} * kTiles * x_pitch(cols) + int64_t{kWarps} * kStages * kStageBytes;
  }
};

#if ATOM_HOPPER

// sums = w x for a tile of 8 rows of x, and 64 columns.
template <int kN>
__device__ void multiply_piece(float (&sums)[kN / 8][4], uint32_t w, int run, uint32_t x, int x_pitch,
                               int lane) {
  uint2 raw[2];
  float scales[2][2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    raw[h] = load_shared_8(w + h * run + lane * 8);
#pragma unroll
    for (int b = 0; b < 2; ++b)
      scales[b][h] = __uint_as_float(load_shared_1(w + h * run + 256 + lane / 4 * 2 + b) << 23);
  }
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    uint32_t first[4], second[4];  // of 8 rows each
    widen_piece_word(b == 0 ? raw[0].x : raw[0].y, first);
    widen_piece_word(b == 0 ? raw[1].x : raw[1].y, second);
    const uint32_t low[4] = {first[0], second[0], first[1], second[1]},
                   high[4] = {first[2], second[2], first[3], second[3]};
#pragma unroll
    for (int t = 0; t < kN / 8; ++t) {
      uint32_t columns[4];
      load_matrices_at(columns, x + t * 8 * x_pitch + b * 64);
      float part[4];
      multiply_fresh(part, low, columns[0], columns[1], F16{});
      multiply(part, high, columns[2], columns[3], F16{});
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t][i] += part[i] * scales[b][i / 2];
    }
  }
}

#endif  // ATOM_HOPPER

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    piece_kernel(const __grid_constant__ GroupedProduct a, const uint16_t* x_rows) {
#if ATOM_HOPPER
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ uint64_t full[C::kWarps][C::kStages], x_full[C::kXs];
  __shared__ int gone[C::kXs];  // warps that have left a tile of x
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pieces = pieces_across(a.cols), x_pitch = C::x_pitch(a.cols);
  const uint32_t x_memory = shared_address(memory);
  const uint32_t ring = x_memory + C::kRows * C::kXs * x_pitch + warp * C::kStages * C::kStageBytes;
  if (threadIdx.x == 0) {
    for (int w = 0; w < C::kWarps; ++w) {
      for (int s = 0; s < C::kStages; ++s) start_barrier(full[w][s], 1);
    }
    for (int s = 0; s < C::kXs; ++s) {
      start_barrier(x_full[s], 1);
      gone[s] = 0;
    }
    publish_barriers();
  }
  const int beyond = pieces * kPieceCols - a.cols;  // columns that are zeros
  for (int i = threadIdx.x; i < C::kRows * C::kXs * beyond; i += C::kThreads)
    reinterpret_cast<uint16_t*>(memory + i / beyond * x_pitch)[a.cols + i % beyond] = 0;
  __syncthreads();
  // A plain product comes behind the gated one, which began when the tiles were there and lets it start: it
  // waits for x only.
  if (a.gated) wait_for_previous();
  let_next_start();

  // Items: 16 rows of w and a tile of x; those of a tile stand together.
  const int64_t total = int64_t{*a.made} * a.row_tiles;
  const int begin = static_cast<int>(total * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(total * (blockIdx.x + 1) / gridDim.x);
  if (begin >= end) return wait_for_previous();
  const int first_tile = begin / a.row_tiles, last_tile = (end - 1) / a.row_tiles;

  const int64_t run_bytes = int64_t{pieces} * kPieceBytes;  // of 8 rows
  int fetched_item = begin + warp, fetched_pieces = 0;      // what is copied next
  const std::byte* from[2];
  auto find_rows = [&] {
    const int tile = fetched_item / a.row_tiles, row_tile = fetched_item - tile * a.row_tiles;
    const int64_t expert = a.tiles[tile].expert;
    from[0] = a.w.first.data + expert * a.w.data_step + (a.gated ? row_tile : 2 * row_tile) * run_bytes;
    from[1] = a.gated ? a.up.first.data + expert * a.up.data_step + row_tile * run_bytes
                      : from[0] + (2 * row_tile + 1 < a.rows / kPieceRows ? run_bytes : 0);
  };
  auto fetch_stage = [&](int stage) {
    if (fetched_item >= end) return;
    const int count = min(C::kPieces, pieces - fetched_pieces);
    if (lane == 0) {
      arrive_expecting(full[warp][stage], 2 * count * kPieceBytes);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        fetch_run(ring + stage * C::kStageBytes + h * C::kRun, from[h] + fetched_pieces * kPieceBytes,
                  count * kPieceBytes, full[warp][stage]);
      }
    }
    if ((fetched_pieces += count) < pieces) return;
    fetched_pieces = 0;
    fetched_item += C::kWarps;
    if (fetched_item < end) find_rows();
  };
  if (fetched_item < end) find_rows();
  for (int s = 0; s < C::kStages; ++s) fetch_stage(s);
  if (!a.gated) wait_for_previous();

  // Tile number i of this block's tiles of x lies at place i % kXs.
  auto fetch_x = [&](int i) {
    if (first_tile + i > last_tile) return;
    const UseTile tile = a.tiles[first_tile + i];
    const int place = i % C::kXs;
    arrive_expecting(x_full[place], tile.count * a.cols * 2);
    for (int r = 0; r < tile.count; ++r) {
      fetch_run(x_memory + (place * C::kRows + r) * x_pitch, x_rows + int64_t{tile.begin + r} * a.cols,
                a.cols * 2, x_full[place]);
    }
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kXs; ++i) fetch_x(i);
  }
  int here = -1;                // the tile this warp works on
  auto go_on_to = [&](int i) {  // every warp through every tile; the last to leave one has its place filled
    while (here < i) {
      sync_warp();
      if (here >= 0 && lane == 0 && atomicAdd(&gone[here % C::kXs], 1) == C::kWarps - 1) {
        gone[here % C::kXs] = 0;
        __threadfence_block();
        fetch_x(here + C::kXs);
      }
      ++here;
      await(x_full[here % C::kXs], here / C::kXs & 1);
    }
  };

  UseTile tile{};
  uint32_t x = 0;
  for (int item = begin + warp, stage = 0, round = 0; item < end; item += C::kWarps) {
    const int tile_of_item = item / a.row_tiles, row_tile = item - tile_of_item * a.row_tiles;
    if (first_tile + here < tile_of_item) {
      go_on_to(tile_of_item - first_tile);
      tile = a.tiles[tile_of_item];
      x = x_memory + (here % C::kXs * C::kRows + lane % 8) * x_pitch + lane / 8 * 16;
    }
    // What is needed at the end, ahead.
    int row[2];
    float bias[2];
    float2 slots[C::kRows / 4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row[h] = (a.gated ? row_tile : 2 * row_tile + h) * kPieceRows + lane / 4;
      bias[h] = bias_of(a, tile.expert, row[h], h);
    }
    auto x_row = [&](int i) { return i / 2 * 8 + lane % 4 * 2 + i % 2; };
#pragma unroll
    for (int i = 0; i < C::kRows / 4; ++i)
      slots[i] = x_row(i) < tile.count ? a.slots[tile.begin + x_row(i)] : float2{};
    float sums[C::kRows / 8][4] = {};
    for (int piece = 0; piece < pieces; piece += C::kPieces) {
      await(full[warp][stage], round & 1);
      const uint32_t w = ring + stage * C::kStageBytes;
      auto multiply_at = [&](int i) {
        multiply_piece<C::kRows>(sums, w + i * kPieceBytes, C::kRun, x + (piece + i) * kPieceCols * 2,
                                 x_pitch, lane);
      };
      if (piece + C::kPieces <= pieces) {
#pragma unroll
        for (int i = 0; i < C::kPieces; ++i) multiply_at(i);
      } else {
#pragma unroll 1
        for (int i = 0; piece + i < pieces; ++i) multiply_at(i);
      }
      sync_warp();
      fetch_stage(stage);
      if (++stage == C::kStages) stage = 0, ++round;
    }
#pragma unroll
    for (int i = 0; i < C::kRows / 4; ++i) {
      if (x_row(i) >= tile.count) continue;
      const float factor = (a.x_divided ? slots[i].x : 1) * kFp4InF16;
      store_pair(a, tile.begin + x_row(i), slots[i].y, row, bias, sums[i / 2][i % 2] * factor,
                 sums[i / 2][2 + i % 2] * factor);
    }
  }
  go_on_to(last_tile - first_tile);
#endif
}

}  // namespace atom::ops::gpu_kernels
