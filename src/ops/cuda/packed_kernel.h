// The kernel of products with stored weights on tensor cores. Device code only; packed_*.cu instantiate it.
//   out[x row] = w x + bias;  gated: act(w x + bias, up x + up_bias)
// Bound: the bytes of the weights for few rows of x, tensor cores for many. Grid: (tiles of rows of w,
// works). A warp has 16 rows of w (and of up) and reads 16 bytes of each with a load; what a thread loads, 8,
// 16 or 32 columns of one row, is widened in registers and is a fragment of mma.m16n8k16 as it stands, since
// the order of columns is free as long as x has the same. Rows of x go through shared memory. Warps of a
// block that have the same rows share the columns, step by step, and their sums are added at the end.
#pragma once
#include <algorithm>
#include <bit>

#include "ops/cuda/mma.h"
#include "ops/cuda/packed_product.h"

namespace atom::ops::gpu_kernels {

inline constexpr int kMaxChosen = 64;  // experts of a token
inline constexpr int kMaxTile = 64;
inline constexpr int kThreads = 256;

// How a launch cuts the work.
struct PackedShape {
  int row_warps = 1;    // warps with different rows of w; the others of a block share columns
  int steps = 0;        // to cover all columns of a matrix
  int stage_steps = 0;  // steps per warp between two fillings of shared memory
  int buffers = 1;
  int row_bytes = 0;  // of x in a buffer
  bool rows_outer = false;
  int block_shift = 31;  // columns of w that share a scale, as a power of two
};

// Columns that a warp covers with one load per row, and loads per row of a step. A step of E2M1 has so many
// columns that with few rows of x more warps can share them if it has one load.
template <class T>
inline constexpr int kChunkCols = 4 * Vec<T>::kElements;
template <class T>
__host__ __device__ constexpr int step_chunks(bool gated, int tiles) {
  return gated || (std::is_same_v<T, Fp4> && tiles <= 2) ? 1 : 2;
}

// What one step has loaded.
template <class T, int kMatrices, int kChunks>
struct Loaded {
  uint4 data[kChunks][kMatrices][2];
};
template <int kMatrices, int kChunks>
struct Loaded<Fp8, kMatrices, kChunks> {
  uint4 data[kChunks][kMatrices][2];
  float scale[kMatrices][2];
};
template <int kMatrices, int kChunks>
struct Loaded<Fp4, kMatrices, kChunks> {
  uint4 data[kChunks][kMatrices][2];
  uint8_t scale[kChunks][kMatrices][2];
};

__device__ inline uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Eight elements, the `piece`-th of 16 bytes, as pairs of bf16 in placed order.
__device__ inline void widen_piece(const uint4& raw, int, uint32_t, uint32_t (&out)[4], Bf16) {
  out[0] = raw.x;
  out[1] = raw.y;
  out[2] = raw.z;
  out[3] = raw.w;
}
// As bf16, the bits of E4M3 mean 2^-120 of its value. (Its NaN becomes 480.)
__device__ inline void widen_piece(const uint4& raw, int piece, uint32_t, uint32_t (&out)[4], Fp8) {
  constexpr uint32_t kFactor = 0x7B807B80u;  // 2^120, twice
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t word = word_of(raw, 2 * piece + i);
    out[2 * i] = multiply_pairs((word << 8 & 0x80008000u) | (word << 4 & 0x07F007F0u), kFactor);
    out[2 * i + 1] = multiply_pairs((word & 0x80008000u) | (word >> 4 & 0x07F007F0u), kFactor);
  }
}
// As bf16, the bits of E2M1 mean 2^-126 of its value: `scale`, E8M0, less one is the exponent of what is
// missing.
__device__ inline void widen_piece(const uint4& raw, int piece, uint32_t scale, uint32_t (&out)[4], Fp4) {
  const uint32_t word = word_of(raw, piece);
  const uint32_t factor = (min(scale, 128u) + 126) * 0x00800080u;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t sign = i == 3 ? word : word << (12 - 4 * i);
    const uint32_t size = i == 0 ? word << 6 : i == 1 ? word << 2 : word >> (4 * i - 6);
    out[i] = multiply_pairs((sign & 0x80008000u) | (size & 0x01C001C0u), factor);
  }
  if (scale > 128) {  // more than one factor can hold
    const uint32_t rest = scale == 255 ? 0x7FC07FC0u : (scale - 1) * 0x00800080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = multiply_pairs(out[i], rest);
  }
}

template <class T, int kTiles, bool kGated>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? 3 : 1)
    packed_kernel(const __grid_constant__ PackedProduct a, const __grid_constant__ PackedShape shape) {
  constexpr int kVec = Vec<T>::kElements, kPieces = kVec / 8;
  constexpr int kMatrices = kGated ? 2 : 1, kChunks = step_chunks<T>(kGated, kTiles);
  constexpr int kChunkPieces = 4 * kPieces, kStepPieces = kChunks * kChunkPieces;
  constexpr int kStep = kChunks * kChunkCols<T>;
  constexpr int kTile = 8 * kTiles;
  constexpr bool kScaled = std::is_same_v<T, Fp8>;  // sums of a step are scaled
  using Step = Loaded<T, kMatrices, kChunks>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int chosen[kMaxChosen], uses[kMaxTile], x_rows[kMaxTile];

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4;
  const int depths = kThreads / 32 / shape.row_warps, depth = warp / shape.row_warps;
  const int row_tile = shape.rows_outer ? blockIdx.y : blockIdx.x;
  const int work = shape.rows_outer ? blockIdx.x : blockIdx.y;
  const int block_rows = 16 * shape.row_warps;
  const bool by_token = a.choice == Choice::token;
  const int segments = by_token ? a.routing.k : 1, total = segments * shape.steps;
  const int vectors = a.cols / kVec;

  // This thread's rows of both matrices, of expert 0.
  const std::byte *data[kMatrices][2], *scales[kMatrices][2];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
    const StoredMatrix& first = m == 0 ? a.w.first : a.up.first;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Beyond the end: the last row again, which is not stored.
      const int row = min(row_tile * block_rows + warp % shape.row_warps * 16 + lane / 4 + 8 * h, a.rows - 1);
      data[m][h] = first.data + row * first.stride;
      scales[m][h] = first.scales + (row + first.first_row) / first.block_rows * first.scale_stride;
    }
  }
  int expert = 0;
  auto load = [&](int q, Step& step) {
    const int segment = by_token ? q / shape.steps : 0, inner = q - segment * shape.steps;
    // Of a token's uses, each has its own expert; otherwise the addresses are those of the block's.
    const int e = by_token ? (q < total ? chosen[segment] : -1) : 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int vector = (inner * kChunks + c) * 4 + quad;
      const bool there = q < total && e >= 0 && vector < vectors;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        const ExpertMatrix& w = m == 0 ? a.w : a.up;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          step.data[c][m][h] = {};
          if (there) {
            step.data[c][m][h] =
                load_once(reinterpret_cast<const uint4*>(data[m][h] + e * w.data_step) + vector);
          }
          if constexpr (std::is_same_v<T, Fp4>) {
            step.scale[c][m][h] = 127;
            if (there) {
              const std::byte* at = scales[m][h] + e * w.scale_step + w.first.first_col / kVec + vector;
              step.scale[c][m][h] = static_cast<uint8_t>(*at);
            }
          }
        }
      }
    }
    if constexpr (kScaled) {
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        const ExpertMatrix& w = m == 0 ? a.w : a.up;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          step.scale[m][h] = 0;
          if (q < total && e >= 0) {
            const std::byte* at = scales[m][h] + e * w.scale_step;
            step.scale[m][h] =
                reinterpret_cast<const float*>(at)[(inner * kStep + w.first.first_col) >> shape.block_shift];
          }
        }
      }
    }
  };

  Step next;
  if (a.choice == Choice::rows)
    load(depth, next);  // weights may be read before the kernels in front have ended
  let_next_start();
  wait_for_previous();
  int count = 1;
  if (a.choice == Choice::rows) {
    count = min(kTile, a.works - work * kTile);
    if (threadIdx.x < count) uses[threadIdx.x] = x_rows[threadIdx.x] = work * kTile + threadIdx.x;
  } else if (by_token) {
    if (threadIdx.x < segments)
      chosen[threadIdx.x] = a.experts.local(a.routing.id(work * segments + threadIdx.x));
  } else {
    UseTile tile{0, work, 1};
    if (a.choice == Choice::tile) {
      tile = a.tiles[work];
    } else {
      tile.expert = a.experts.local(a.routing.id(work));
    }
    if (tile.count == 0 || tile.expert < 0) return;
    expert = tile.expert;
    count = tile.count;
    if (threadIdx.x < count) {
      const int use = a.choice == Choice::tile ? a.order[tile.begin + threadIdx.x] : work;
      uses[threadIdx.x] = use;
      x_rows[threadIdx.x] = a.x_by_use ? use : use / a.routing.k;
    }
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
    const ExpertMatrix& w = m == 0 ? a.w : a.up;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      data[m][h] += expert * w.data_step;
      scales[m][h] += expert * w.scale_step;
    }
  }
  if (a.choice != Choice::rows) load(depth, next);
  if (threadIdx.x < block_rows && a.bias.first != nullptr) {  // wanted at the end
    const int row = min(row_tile * block_rows + static_cast<int>(threadIdx.x), a.rows - 1);
    for (int n = 0; n < segments; ++n) {
      const int e = by_token ? max(chosen[n], 0) : expert;
      asm volatile("prefetch.global.L1 [%0];" ::"l"(a.bias.first + e * a.bias.step + row));
      if (kGated) asm volatile("prefetch.global.L1 [%0];" ::"l"(a.up_bias.first + e * a.up_bias.step + row));
    }
  }

  // Fills a buffer with the columns of `stage_steps * depths` steps of all rows of x.
  const int stage_pieces = shape.stage_steps * depths * kStepPieces;
  struct Spot {
    int64_t from;       // element of x; -1: zeros
    unsigned char* to;  // null: nothing to do
  };
  auto spot_of = [&](int stage, int i) -> Spot {
    if (i >= count * stage_pieces) return {-1, nullptr};
    const int row = count == 1 ? 0 : i / stage_pieces, piece = i - row * stage_pieces;
    const int step = piece / kStepPieces, p = piece % kStepPieces;
    const int q = stage * shape.stage_steps * depths + step;
    if (q >= total) return {-1, nullptr};
    const int segment = by_token ? q / shape.steps : 0;
    const int col = (q - segment * shape.steps) * kStep + p * 8;
    const bool there = col < a.cols && !(by_token && chosen[segment] < 0);
    const int64_t x_row = by_token ? int64_t{work} * segments + segment : x_rows[row];
    // Of the chunk's pieces, all first ones of the four threads of a row come first.
    const int inside = p % kChunkPieces;
    const int at = piece - inside + inside % kPieces * 4 + inside / kPieces;
    unsigned char* buffer = memory + stage % shape.buffers * count * shape.row_bytes;
    return {there ? x_row * a.x_stride + col : -1, buffer + row * shape.row_bytes + at * 16};
  };
  auto fill = [&](int stage) {
    if (!a.x_is_float) {
      for (int i = threadIdx.x; i < count * stage_pieces; i += kThreads) {
        const Spot spot = spot_of(stage, i);
        if (spot.to == nullptr) continue;
        copy_ahead(spot.to, static_cast<const uint16_t*>(a.x) + max(spot.from, int64_t{0}), spot.from >= 0);
      }
      end_copies();
      return;
    }
    constexpr int kTogether = 4;  // loads under way
    for (int first = threadIdx.x; first < count * stage_pieces; first += kTogether * kThreads) {
      float4 low[kTogether], high[kTogether];
      unsigned char* to[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const Spot spot = spot_of(stage, first + j * kThreads);
        to[j] = spot.to;
        low[j] = high[j] = {};
        if (spot.from < 0) continue;
        const float4* x = reinterpret_cast<const float4*>(static_cast<const float*>(a.x) + spot.from);
        low[j] = x[0];
        high[j] = x[1];
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (to[j] == nullptr) continue;
        const float all[8] = {low[j].x,  low[j].y,  low[j].z,  low[j].w,
                              high[j].x, high[j].y, high[j].z, high[j].w};
        float value[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) value[placed(k, T{})] = all[k];
        *reinterpret_cast<uint4*>(to[j]) = {
            pack(value[0], value[1], Bf16{}), pack(value[2], value[3], Bf16{}),
            pack(value[4], value[5], Bf16{}), pack(value[6], value[7], Bf16{})};
      }
    }
    end_copies();
  };

  float sums[kMatrices][kTiles][4] = {};
  int x_offset[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    // Beyond the end: the last row again, which is not stored.
    x_offset[t] = min(t * 8 + lane / 4, count - 1) * shape.row_bytes + quad * 16;
  }
  auto compute = [&](const Step& step, const unsigned char* x) {
    float scaled[kScaled ? kMatrices : 1][kScaled ? kTiles : 1][4] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        uint32_t w[kMatrices][2][4];
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            uint32_t scale = 0;
            if constexpr (std::is_same_v<T, Fp4>) scale = step.scale[c][m][h];
            widen_piece(step.data[c][m][h], p, scale, w[m][h], T{});
          }
        }
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const uint4 b = *reinterpret_cast<const uint4*>(x + x_offset[t] + (c * kChunkPieces + p * 4) * 16);
#pragma unroll
          for (int m = 0; m < kMatrices; ++m) {
            float(&to)[4] = kScaled ? scaled[kScaled ? m : 0][kScaled ? t : 0] : sums[m][t];
            const uint32_t first[4] = {w[m][0][0], w[m][1][0], w[m][0][1], w[m][1][1]};
            const uint32_t second[4] = {w[m][0][2], w[m][1][2], w[m][0][3], w[m][1][3]};
            multiply(to, first, b.x, b.y, Bf16{});
            multiply(to, second, b.z, b.w, Bf16{});
          }
        }
      }
    }
    if constexpr (kScaled) {
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[m][t][i] += step.scale[m][i / 2] * scaled[m][t][i];
        }
      }
    }
  };

  const int stage_all = shape.stage_steps * depths, stages = (total + stage_all - 1) / stage_all;
  fill(0);
  for (int stage = 0, q = depth; stage < stages; ++stage) {
    if (stage + 1 < stages) {
      fill(stage + 1);
      await_copies<1>();
    } else {
      await_copies<0>();
    }
    __syncthreads();
    const unsigned char* buffer = memory + stage % shape.buffers * count * shape.row_bytes;
    for (int i = 0; i < shape.stage_steps && q < total; ++i, q += depths) {
      const Step now = next;
      load(q + depths, next);
      compute(now, buffer + (i * depths + depth) * kStepPieces * 16);
    }
    __syncthreads();  // before the buffer is filled again, or the sums take its place
  }

  float* all = reinterpret_cast<float*>(memory);
  const int row_in_block = warp % shape.row_warps * 16 + lane / 4;
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = (depth * kMatrices + m) * block_rows + row_in_block + i / 2 * 8;
        all[row * (kTile + 1) + t * 8 + quad * 2 + i % 2] = sums[m][t][i];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < block_rows * count; i += kThreads) {
    const int in_block = i % block_rows, item = i / block_rows, row = row_tile * block_rows + in_block;
    if (row >= a.rows) continue;
    float sum[kMatrices] = {};
    for (int d = 0; d < depths; ++d) {
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        sum[m] += all[((d * kMatrices + m) * block_rows + in_block) * (kTile + 1) + item];
      }
    }
    if (by_token) {
      float* out = static_cast<float*>(a.out) + work * a.out_stride + row;
      for (int n = 0; n < segments && a.bias.first != nullptr; ++n) {
        if (chosen[n] >= 0) sum[0] += a.routing.weight(work * segments + n) * a.bias.of(chosen[n], row);
      }
      *out = sum[0] + (a.accumulate ? *out : 0);
      continue;
    }
    const int use = uses[item];
    const float weight = a.choice == Choice::rows ? 1 : a.routing.weight(use);
    if constexpr (kGated) {
      float value = a.experts.activate(sum[0] + a.bias.of(expert, row), sum[1] + a.up_bias.of(expert, row));
      if (a.to_inner) {
        static_cast<uint16_t*>(a.out)[use * a.out_stride + placed_for(a.inner_type, row)] =
            bf16_bits(value * weight);
        continue;
      }
      sum[0] = value;
    } else {
      sum[0] += weight * a.bias.of(expert, row);
    }
    static_cast<float*>(a.out)[use * a.out_stride + row] = sum[0];
  }
}

// Starts the kernel of one type for any tile; defined in packed_*.cu.
using PackedStart = void(Stream&, const PackedProduct&, int tile, int64_t real_works);
PackedStart start_packed_bf16, start_packed_fp8, start_packed_fp4;

inline constexpr int64_t kStageBytes = 40 << 10, kAllBytes = 64 << 10;

template <class T, int kTiles, bool kGated>
void start_packed(Stream& stream, const PackedProduct& a, int64_t real_works) {
  constexpr int kStep = step_chunks<T>(kGated, kTiles) * kChunkCols<T>;
  constexpr int kTile = 8 * kTiles;
  gpu::Queue& queue = stream.queue();
  const bool by_rows = a.choice == Choice::rows;
  const int64_t blocks_y = by_rows ? ceil_div(a.works, kTile) : a.works;
  const int64_t x_rows = by_rows ? std::min<int64_t>(kTile, a.works) : a.choice == Choice::tile ? kTile : 1;
  const int64_t fragments = ceil_div(a.rows, 16);
  const int64_t busy = by_rows ? blocks_y : real_works;

  // Few blocks: their warps share columns. Many: they have rows of their own, and read x together.
  const int64_t wanted = kTiles <= 2 ? 3 * queue.processors() : queue.processors() / 2;
  constexpr int kWarps = kThreads / 32;
  PackedShape s{.row_warps = 1, .steps = static_cast<int>(ceil_div(a.cols, kStep)), .rows_outer = by_rows};
  // Warps that share columns read long runs of a row together.
  const int most_row_warps = kTiles == 1 ? 2 : kTiles == 2 ? 4 : kWarps;
  while (s.row_warps < most_row_warps && ceil_div(fragments, 2 * s.row_warps) * busy >= wanted)
    s.row_warps *= 2;
  const int64_t step_bytes = x_rows * kStep * 2;
  while (s.row_warps < kWarps && step_bytes * (kWarps / s.row_warps) > kStageBytes) s.row_warps *= 2;
  const int64_t depths = kWarps / s.row_warps;
  const int64_t total = (a.choice == Choice::token ? a.routing.k : 1) * s.steps,
                per_warp = ceil_div(total, depths);
  s.stage_steps = static_cast<int>(per_warp);
  if (step_bytes * depths * per_warp > kAllBytes) {
    s.stage_steps = static_cast<int>(std::max<int64_t>(1, kStageBytes / (step_bytes * depths)));
    s.buffers = 2;
  }
  const int64_t columns = s.stage_steps * depths * kStep * 2;
  s.row_bytes =
      static_cast<int>(columns % 128 == 64 ? columns : columns + 64);  // neighbours in different banks
  const StoredMatrix& w = a.w.first;
  if (w.block_cols < w.first_col + a.cols)
    s.block_shift = std::countr_zero(static_cast<unsigned>(w.block_cols));
  const int64_t sums = int64_t{kWarps} * 16 * (kGated ? 2 : 1) * (kTile + 1) * 4;
  const size_t shared = static_cast<size_t>(std::max(s.buffers * x_rows * s.row_bytes, sums));
  const auto rows = static_cast<unsigned>(ceil_div(fragments, s.row_warps)),
             works = static_cast<unsigned>(blocks_y);
  launch(queue, packed_kernel<T, kTiles, kGated>, s.rows_outer ? dim3(works, rows) : dim3(rows, works),
         dim3(kThreads), shared, a, s);
}

template <class T, bool kGated>
void start_packed_tile(Stream& stream, const PackedProduct& a, int tile, int64_t real_works) {
  if (tile <= 8) return start_packed<T, 1, kGated>(stream, a, real_works);
  if (tile <= 16) return start_packed<T, 2, kGated>(stream, a, real_works);
  if (std::is_same_v<T, Fp8> || tile <= 32) return start_packed<T, 4, kGated>(stream, a, real_works);
  if constexpr (!std::is_same_v<T, Fp8>) return start_packed<T, 8, kGated>(stream, a, real_works);
}

template <class T>
void start_packed_any(Stream& stream, const PackedProduct& a, int tile, int64_t real_works) {
  if (a.gated) return start_packed_tile<T, true>(stream, a, tile, real_works);
  start_packed_tile<T, false>(stream, a, tile, real_works);
}

}  // namespace atom::ops::gpu_kernels
