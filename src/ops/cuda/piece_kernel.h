// The kernel of grouped products with MXFP4 in pieces for few rows of x per expert. Device code only.
//   out[x row] = w x + bias;  gated: act(w x + bias, up x + up_bias)
// Bound: the bytes of the weights. A block per processor; all 16 rows of all experts' matrices (8 of gate and
// the same 8 of up if gated), with the tile of x that they meet, are shared evenly. A warp multiplies 16
// whole rows, alone: it has a ring in shared memory, which it keeps filled by copies of runs of pieces, and
// an element's way from there is one load, a few instructions to widen it to f16, and the tensor core. x,
// f16, lies in shared memory in whole rows, brought there by one more warp, with the tile that comes next if
// there is room.
#pragma once
#include "ops/cuda/grouped_results.h"

namespace atom::ops::gpu_kernels {

// Tiles of kN rows of x, of which kTiles have room in shared memory. kOneRow: GroupedProduct::one_row.
template <int kN, int kTiles, bool kOneRow = false>
struct PieceCut {
  static constexpr bool kOne = kOneRow;
  static constexpr int kRows = kN, kXs = kTiles, kStored = kOne ? 1 : kN;  // rows of x in shared memory
  static constexpr int kWarps = kOne ? 12 : 8;                             // that multiply
  static constexpr int kThreads = 32 * (kWarps + 1);
  // A stage is a run of each of two eights of rows: long copies of whole lines are read faster than more of
  // them under way.
  static constexpr int kStages = 2, kRun = kMostPieces * kPieceBytes + 256, kStageBytes = 2 * kRun;

  // Bytes between rows of x in shared memory, so that ldmatrix reads eight of them without conflicts.
  __host__ __device__ static int x_pitch(const PieceRuns& runs) {
    return runs.count * runs.pieces * kPieceCols * 2 + 16;
  }
  static int64_t memory(int cols) {
    return int64_t{kStored} * kTiles * x_pitch(piece_runs(cols)) + int64_t{kWarps} * kStages * kStageBytes;
  }
};

#if ATOM_HOPPER

// sums += w x for 64 columns of 16 rows: two pieces, `run` bytes apart, with their scales.
template <int kN>
__device__ void multiply_piece(float (&sums)[kN / 8][4], uint32_t piece, uint32_t scale, int run, uint32_t x,
                               int x_pitch, int lane) {
  uint2 raw[2];
  float scales[2][2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    raw[h] = load_shared_8(piece + h * run + lane * 8);
#pragma unroll
    for (int b = 0; b < 2; ++b)
      scales[b][h] = __uint_as_float(load_shared_1(scale + h * run + lane / 4 * 2 + b) << 23);
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

// Writes x [cols] as f16 to a row in shared memory, divided by the power of two that it returns. By all
// threads of a block, which may then read it.
template <int kThreads>
__device__ float place_row(const float* x, int cols, unsigned char* row) {
  __shared__ float of_warp[kThreads / 32];
  auto eight = [&](int i, float(&v)[8]) {
    const float4 *from = reinterpret_cast<const float4*>(x) + 2 * i, low = from[0], high = from[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  };
  float v[8], largest = 0;
  for (int i = threadIdx.x; i < cols / 8; i += kThreads) {
    eight(i, v);
#pragma unroll
    for (int k = 0; k < 8; ++k) largest = fmaxf(largest, fabsf(v[k]));
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) largest = fmaxf(largest, of_warp[w]);
  const F16Range range(largest);
  for (int i = threadIdx.x; i < cols / 8; i += kThreads) {
    eight(i, v);
    uint32_t* to = reinterpret_cast<uint32_t*>(row + i / 4 * 64 + i % 4 * 4);  // as spread_place has it
#pragma unroll
    for (int k = 0; k < 4; ++k) to[4 * k] = pack(v[k] * range.factor, v[k + 4] * range.factor, F16{});
  }
  __syncthreads();
  return range.divisor;
}

#endif  // ATOM_HOPPER

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    piece_kernel(const __grid_constant__ GroupedProduct a, const void* x_rows) {
#if ATOM_HOPPER
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ uint64_t full[C::kWarps][C::kStages], x_full[C::kXs], x_empty[C::kXs];
  __shared__ UseTile uses[C::kOne ? kMostUsesOfRow : 1];
  __shared__ int uses_here;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const PieceRuns& runs = a.runs;
  const int x_pitch = C::x_pitch(runs), x_bytes = C::kStored * C::kXs * x_pitch;
  unsigned char* x_memory = memory + C::kWarps * C::kStages * C::kStageBytes;
  const uint32_t x_address = shared_address(x_memory);
  const uint32_t ring = shared_address(memory) + warp * C::kStages * C::kStageBytes;
  if (threadIdx.x == 0) {
    for (int w = 0; w < C::kWarps; ++w) {
      for (int s = 0; s < C::kStages; ++s) start_barrier(full[w][s], 1);
    }
    for (int s = 0; s < C::kXs; ++s) {
      start_barrier(x_full[s], 1);
      start_barrier(x_empty[s], 32 * C::kWarps);
    }
    publish_barriers();
  }
  const int beyond = runs.count * runs.pieces * kPieceCols - a.cols;  // columns that are zeros
  for (int i = threadIdx.x; i < x_bytes / x_pitch * beyond; i += C::kThreads)
    reinterpret_cast<uint16_t*>(x_memory + i / beyond * x_pitch)[a.cols + i % beyond] = 0;
  if (!a.known_early) wait_for_previous();
  if (C::kOne && warp == 0) {
    const int expert = lane < a.routing.k ? a.experts.local(a.routing.ids[lane]) : -1;
    const uint32_t here = ballot(expert >= 0);
    if (expert >= 0) uses[__popc(here & (1u << lane) - 1)] = {expert, lane, 1, 0, 1};
    if (lane == 0) uses_here = __popc(here);
  }
  __syncthreads();
  let_next_start();
  const UseTile* tiles = C::kOne ? uses : a.tiles;

  // Items: 16 rows of w and a tile of x; those of a tile stand together.
  const int64_t total = int64_t{C::kOne ? uses_here : *a.made} * a.row_tiles;
  const int begin = static_cast<int>(total * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(total * (blockIdx.x + 1) / gridDim.x);
  if (begin >= end) return wait_for_previous();
  const int first_tile = begin / a.row_tiles, last_tile = (end - 1) / a.row_tiles;

  const int64_t eight_bytes = int64_t{runs.count} * runs.bytes;  // of 8 rows
  int fetched_item = begin + warp, fetched_runs = 0;             // what is copied next
  const std::byte* from[2];
  auto find_rows = [&] {
    const int tile = fetched_item / a.row_tiles, row_tile = fetched_item - tile * a.row_tiles;
    const int64_t expert = tiles[tile].expert;
    from[0] = a.w.first.data + expert * a.w.data_step + (a.gated ? row_tile : 2 * row_tile) * eight_bytes;
    from[1] = a.gated ? a.up.first.data + expert * a.up.data_step + row_tile * eight_bytes
                      : from[0] + (2 * row_tile + 1 < a.rows / kPieceRows ? eight_bytes : 0);
  };
  auto fetch_stage = [&](int stage) {
    if (fetched_item >= end) return;
    if (lane == 0) {
      arrive_expecting(full[warp][stage], 2 * runs.bytes);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        fetch_run(ring + stage * C::kStageBytes + h * C::kRun, from[h] + fetched_runs * runs.bytes,
                  runs.bytes, full[warp][stage]);
      }
    }
    if (++fetched_runs < runs.count) return;
    fetched_runs = 0;
    fetched_item += C::kWarps;
    if (fetched_item < end) find_rows();
  };
  const bool fetches_x = warp == C::kWarps;
  if (!fetches_x) {
    if (fetched_item < end) find_rows();
    for (int s = 0; s < C::kStages; ++s) fetch_stage(s);
  }
  if (a.known_early) wait_for_previous();

  // Tile number i of this block's tiles of x lies at place i % kXs. Every warp goes through every tile.
  const bool shared_row = C::kOne && a.gated;  // by all tiles
  float divisor = 1;
  if (shared_row) divisor = place_row<C::kThreads>(static_cast<const float*>(x_rows), a.cols, x_memory);
  if (fetches_x) {
    for (int i = 0; !shared_row && lane == 0 && first_tile + i <= last_tile; ++i) {
      const int place = i % C::kXs;
      if (i >= C::kXs) await(x_empty[place], (i / C::kXs + 1) & 1);
      const UseTile tile = tiles[first_tile + i];
      arrive_expecting(x_full[place], tile.count * a.cols * 2);
      for (int r = 0; r < tile.count; ++r) {
        fetch_run(x_address + (place * C::kStored + r) * x_pitch,
                  static_cast<const uint16_t*>(x_rows) + int64_t{tile.begin + r} * a.cols, a.cols * 2,
                  x_full[place]);
      }
    }
    return;
  }
  int here = -1;  // the tile this warp works on
  auto go_on_to = [&](int i) {
    while (here < i) {
      if (here >= 0) arrive(x_empty[here % C::kXs]);
      ++here;
      await(x_full[here % C::kXs], here / C::kXs & 1);
    }
  };

  UseTile tile{};
  uint32_t x = 0;
  for (int item = begin + warp, number = -1, stage = 0, round = 0; item < end; item += C::kWarps) {
    const int tile_of_item = item / a.row_tiles, row_tile = item - tile_of_item * a.row_tiles;
    if (number < tile_of_item) {
      number = tile_of_item;
      if (!shared_row) go_on_to(number - first_tile);
      tile = tiles[number];
      const int first = max(here, 0) % C::kXs * C::kStored;
      x = x_address + (first + (C::kOne ? 0 : lane % 8)) * x_pitch + lane / 8 * 16;
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
    for (int i = 0; i < C::kRows / 4; ++i) {
      slots[i] = {};
      if (x_row(i) < tile.count)
        slots[i] = C::kOne ? float2{divisor, a.routing.weights[tile.begin]} : a.slots[tile.begin + x_row(i)];
    }
    float sums[C::kRows / 8][4] = {};
    for (int run = 0; run < runs.count; ++run) {
      await(full[warp][stage], round & 1);
      const uint32_t pieces = ring + stage * C::kStageBytes, scales = pieces + runs.pieces * kPieceBytes;
      const uint32_t x_here = x + run * runs.pieces * kPieceCols * 2;
      auto multiply_at = [&](int i) {
        multiply_piece<C::kRows>(sums, pieces + i * kPieceBytes, scales + i * kPieceScaleBytes, C::kRun,
                                 x_here + i * kPieceCols * 2, x_pitch, lane);
      };
      if (runs.pieces == kMostPieces) {
#pragma unroll
        for (int i = 0; i < kMostPieces; ++i) multiply_at(i);
      } else {
#pragma unroll 1
        for (int i = 0; i < runs.pieces; i += kPieceStep) {
#pragma unroll
          for (int j = 0; j < kPieceStep; ++j) multiply_at(i + j);
        }
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
  if (!shared_row) go_on_to(last_tile - first_tile);
#endif
}

}  // namespace atom::ops::gpu_kernels
