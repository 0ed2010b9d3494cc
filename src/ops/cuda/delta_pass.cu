// The state of delta nets from chunk to chunk, and their outputs.
//   U = T (V - e^g K S), out = e^g Q S + P U, S = e^(g_last) S + Kᵀ (e^(g_last - g) U), as delta_chunks.h
//   says
// Bound: the chain of chunks of the longest sequence; for many sequences, flops. Grid: (sequence, value head,
// columns of S). Columns do not depend on each other: a warp has 16, and everything is made transposed, so
// that what one product gives is in place as the left operand of the next, S never leaves the registers and
// warps share nothing but the chunk's keys, queries, T and P, which are copied ahead. S and U are rounded to
// f16 for products, in units of a power of two: their largest element, or V's, is kept between 1/16 and 16
// units. Within a chunk neither can grow beyond 77 times that (keys have length 1 and decays and beta are
// below 1: a token adds at most its value).
#include <cmath>

#include "ops/cuda/delta_chunks.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kTiles = kDeltaChunk / 8, kKeyTiles = kDeltaKeys / 8;
constexpr float kLargest = 16, kSmallest = 1 / kLargest;

template <int kWarps>
struct Stage {
  static constexpr int kColumns = kWarps * 16, kStride = kColumns + 4;  // fragments fall into different banks
  ChunkKeys keys;
  ChunkHead head;
  float values[kDeltaChunk][kStride];
};

// Copies a whole number of units.
template <int kThreads, class T>
__device__ inline void copy_all(T& to, const T& from) {
  constexpr int kUnits = sizeof(T) / 16;
#pragma unroll
  for (int i = 0; i < kUnits; i += kThreads) {
    const int unit = i + static_cast<int>(threadIdx.x);
    if (i + kThreads <= kUnits || unit < kUnits) {
      copy_ahead(reinterpret_cast<uint4*>(&to) + unit, reinterpret_cast<const uint4*>(&from) + unit);
    }
  }
}

// Two neighbouring 16 x 8 results as the left operand of a product over their 16 columns.
__device__ inline void as_operand(uint32_t (&r)[4], const float (&low)[4], const float (&high)[4]) {
  r[0] = pack(low[0], low[1], F16{});
  r[1] = pack(low[2], low[3], F16{});
  r[2] = pack(high[0], high[1], F16{});
  r[3] = pack(high[2], high[3], F16{});
}

// out (+)= xᵀ rowsᵀ over all keys' lanes, where rows are keys or queries.
__device__ inline void times_rows(float (&out)[kTiles][4], const uint32_t (&x)[kDeltaKeys / 16][4],
                                  const uint4* rows, int lane) {
#pragma unroll
  for (int step = 0; step < kDeltaKeys / 16; ++step) {
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      uint32_t b[4];
      load_matrices(b, rows + key_unit(n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
      multiply(out[2 * n], x[step], b[0], b[1], F16{});
      multiply(out[2 * n + 1], x[step], b[2], b[3], F16{});
    }
  }
}
// out += xᵀ triangleᵀ.
__device__ inline void times_triangle(float (&out)[kTiles][4], const uint32_t (&x)[kDeltaBlocks][4],
                                      const uint4* triangle, int lane) {
#pragma unroll
  for (int step = 0; step < kDeltaBlocks; ++step) {
#pragma unroll
    for (int n = step; n < kDeltaBlocks; ++n) {
      uint32_t b[4];
      load_matrices(b, triangle + triangle_unit(n, step, lane / 16 * 8 + lane % 8, lane / 8 % 2));
      multiply(out[2 * n], x[step], b[0], b[1], F16{});
      multiply(out[2 * n + 1], x[step], b[2], b[3], F16{});
    }
  }
}

template <int kWarps, int kStages>
__global__ void __launch_bounds__(kWarps * 32) pass_kernel(DeltaChunks a) {
  using Stage = Stage<kWarps>;
  constexpr int kThreads = kWarps * 32, kColumns = Stage::kColumns;
  extern __shared__ __align__(128) unsigned char bytes[];
  Stage* stages = reinterpret_cast<Stage*>(bytes);
  let_next_start();
  wait_for_previous();
  const RecurrentSequence s = a.sequences[blockIdx.x];
  const int count = chunks_of(s);
  if (count == 0) return;
  const int head = blockIdx.y, key_head = head / (a.v_heads / a.k_heads), column0 = blockIdx.z * kColumns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t chunk0 = chunks_before(a, blockIdx.x);
  const ChunkKeys* keys = a.keys + chunk0 * a.k_heads + key_head;
  const ChunkHead* heads = a.heads + chunk0 * a.v_heads + head;
  const float* values = a.qkv + s.first_row * a.qkv_stride + 2 * int64_t{a.k_heads} * kDeltaKeys +
                        int64_t{head} * a.v_dim + column0;
  auto fetch = [&](int chunk) {
    if (chunk < count) {
      Stage& stage = stages[chunk % kStages];
      copy_all<kThreads>(stage.keys, keys[int64_t{chunk} * a.k_heads]);
      copy_all<kThreads>(stage.head, heads[int64_t{chunk} * a.v_heads]);
      constexpr int kUnits = kColumns / 4, kRows = kThreads / kUnits;
      const int unit = threadIdx.x % kUnits;
#pragma unroll
      for (int i = 0; i < kDeltaChunk; i += kRows) {
        const int t = i + threadIdx.x / kUnits, row = chunk * kDeltaChunk + t;
        const bool valid = row < s.rows;
        copy_ahead(&stage.values[t][unit * 4], values + (valid ? row * a.qkv_stride : 0) + unit * 4, valid);
      }
    }
    end_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) fetch(i);

  // Element e of a result lies in row lane / 4 + e / 2 * 8, here a column of S, and column lane % 4 * 2 + e
  // % 2.
  const int column = column0 + warp * 16 + lane / 4, pair = lane % 4 * 2;
  float* state = a.state + s.slot * a.state_stride + int64_t{head} * kDeltaKeys * a.v_dim + column;
  float S[kKeyTiles][4];
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) S[n][e] = state[int64_t{n * 8 + pair + e % 2} * a.v_dim + e / 2 * 8];
  }
  float per_one = 1;  // units
  for (int chunk = 0; chunk < count; ++chunk) {
    await_copies<kStages - 2>();
    __syncthreads();
    fetch(chunk + kStages - 1);
    const Stage& stage = stages[chunk % kStages];

    float remembered[kTiles][4], largest = 0;  // V first
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        remembered[n][e] = stage.values[n * 8 + pair + e % 2][warp * 16 + lane / 4 + e / 2 * 8] * per_one;
        largest = fmaxf(largest, fabsf(remembered[n][e]));
      }
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) largest = fmaxf(largest, fabsf(S[n][e]));
    }
    largest = __uint_as_float(warp_max_bits(__float_as_uint(largest)));
    if ((largest > kLargest || largest < kSmallest) && largest > 0) {
      // To between 1 and 2. Below 2^-60 everything may vanish, and beyond 2^60 it may be lost.
      const int wanted = min(max(static_cast<int>(__float_as_uint(per_one) >> 23) + 127 -
                                     static_cast<int>(__float_as_uint(largest) >> 23),
                                 127 - 60),
                             127 + 60);
      const float next = __uint_as_float(static_cast<uint32_t>(wanted) << 23), factor = next / per_one;
      per_one = next;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) remembered[n][e] *= factor;
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) S[n][e] *= factor;
      }
    }
    uint32_t state_operand[kDeltaKeys / 16][4];
#pragma unroll
    for (int step = 0; step < kDeltaKeys / 16; ++step)
      as_operand(state_operand[step], S[2 * step], S[2 * step + 1]);

    uint32_t operand[kDeltaBlocks][4];
    {
      float known[kTiles][4] = {};
      times_rows(known, state_operand, stage.keys.keys, lane);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 before = *reinterpret_cast<const float2*>(&stage.head.before[n * 8 + pair]);
#pragma unroll
        for (int e = 0; e < 4; ++e) remembered[n][e] -= (e % 2 == 0 ? before.x : before.y) * known[n][e];
      }
    }
#pragma unroll
    for (int step = 0; step < kDeltaBlocks; ++step) {
      as_operand(operand[step], remembered[2 * step], remembered[2 * step + 1]);
    }
    float updates[kTiles][4] = {};
    times_triangle(updates, operand, stage.head.inverse, lane);

    {
      float out[kTiles][4] = {};
      times_rows(out, state_operand, stage.keys.queries, lane);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 before = *reinterpret_cast<const float2*>(&stage.head.before[n * 8 + pair]);
#pragma unroll
        for (int e = 0; e < 4; ++e) out[n][e] *= e % 2 == 0 ? before.x : before.y;
      }
#pragma unroll
      for (int step = 0; step < kDeltaBlocks; ++step) {
        as_operand(operand[step], updates[2 * step], updates[2 * step + 1]);
      }
      times_triangle(out, operand, stage.head.products, lane);
      const int row0 = chunk * kDeltaChunk;
      const float one = 1 / per_one;
      float* to = a.out + (s.first_row + row0) * a.out_stride + int64_t{head} * a.v_dim + column;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int t = n * 8 + pair + e % 2;
          if (row0 + t < s.rows) to[t * a.out_stride + e / 2 * 8] = out[n][e] * one;
        }
      }
    }

    const float decay = stage.head.before[kDeltaChunk - 1];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) S[n][e] *= decay;
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 after = *reinterpret_cast<const float2*>(&stage.head.after[n * 8 + pair]);
#pragma unroll
      for (int e = 0; e < 4; ++e) updates[n][e] *= e % 2 == 0 ? after.x : after.y;
    }
#pragma unroll
    for (int step = 0; step < kDeltaBlocks; ++step) {
      as_operand(operand[step], updates[2 * step], updates[2 * step + 1]);
#pragma unroll
      for (int n = 0; n < kKeyTiles / 2; ++n) {
        uint32_t b[4];
        load_turned_matrices(b, stage.keys.keys + key_unit(step * 16 + lane % 16, n * 2 + lane / 16));
        multiply(S[2 * n], operand[step], b[0], b[1], F16{});
        multiply(S[2 * n + 1], operand[step], b[2], b[3], F16{});
      }
    }
  }
  const float one = 1 / per_one;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) state[int64_t{n * 8 + pair + e % 2} * a.v_dim + e / 2 * 8] = S[n][e] * one;
  }
}

constexpr int kPassWarps = 2, kPassStages = 2;

}  // namespace

void pass_chunks(Stream& stream, const DeltaChunks& a) {
  const dim3 grid(static_cast<unsigned>(a.count), static_cast<unsigned>(a.v_heads),
                  static_cast<unsigned>(a.v_dim / Stage<kPassWarps>::kColumns));
  launch(stream.queue(), pass_kernel<kPassWarps, kPassStages>, grid, dim3(kPassWarps * 32),
         kPassStages * sizeof(Stage<kPassWarps>), a);
}

}  // namespace atom::ops::gpu_kernels
