// The state of delta nets from chunk to chunk, and their outputs.
//   U = T beta (V - e^g K S), out = e^g Q S + P U, S = e^(g_last) S + Kᵀ (e^(g_last - g) U), as
//   delta_chunks.h says
// Bound: the chain of chunks of the longest sequence; for many sequences, flops. Grid: (sequence, value head,
// columns of S). Columns do not depend on each other: a warp has 16, and everything is made transposed, so
// that what one product gives is in place as the left operand of the next and S never leaves the registers.
// Half of the warps carry states so and leave S and U in shared memory, as operands; the others make the
// outputs of the chunk before of them. Keys, T and values, queries and P are copied ahead. S and U are
// rounded to f16 for products, in units of a power of two: their largest element, or V's, is kept between
// 1/16 and 16 units. Within a chunk neither can grow beyond 77 times that (keys have length 1 and decays and
// beta are below 1: a token adds at most its value).
#include <cmath>

#include "ops/cuda/delta_chunks.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kTiles = kDeltaChunk / 8, kKeyTiles = kDeltaKeys / 8, kKeySteps = kDeltaKeys / 16;
constexpr float kLargest = 16, kSmallest = 1 / kLargest;

// What a warp that carries states leaves for its partner: operands of the lanes, and one in units.
struct Handover {
  uint4 state[kKeySteps][32], updates[kDeltaBlocks][32];
  float per_one[4];
};

template <int kPairs, int kStages>
struct PassMemory {
  static constexpr int kColumns = kPairs * 16, kStride = kColumns + 4;  // fragments fall into different banks
  struct {
    uint4 keys[kKeyUnits], inverse[kTriangleUnits];
    float before[kDeltaChunk], after[kDeltaChunk], betas[kDeltaChunk];
    float values[kDeltaChunk][kStride];
  } states[kStages];
  struct {
    uint4 queries[kKeyUnits], products[kTriangleUnits];
    float before[kDeltaChunk];
  } outputs[kStages];
  Handover handovers[2][kPairs];
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

__device__ inline uint4 packed(const uint32_t (&r)[4]) { return {r[0], r[1], r[2], r[3]}; }
__device__ inline void unpack(uint32_t (&r)[4], const uint4& x) {
  r[0] = x.x, r[1] = x.y, r[2] = x.z, r[3] = x.w;
}

// out += xᵀ rowsᵀ over all lanes of keys, where rows are keys or queries.
__device__ inline void times_rows(float (&out)[kTiles][4], const uint32_t (&x)[kKeySteps][4],
                                  const uint4* rows, int lane) {
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
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
// x *= the factor of each token. Element e of a result lies in row lane / 4 + e / 2 * 8, here a column of S,
// and column lane % 4 * 2 + e % 2, here a token.
__device__ inline void times_tokens(float (&x)[kTiles][4], const float* factors, int lane) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float2 f = *reinterpret_cast<const float2*>(factors + n * 8 + lane % 4 * 2);
    x[n][0] *= f.x, x[n][1] *= f.y, x[n][2] *= f.x, x[n][3] *= f.y;
  }
}
template <int n>
__device__ inline void times(float (&x)[n][4], float factor) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[i][e] *= factor;
  }
}
template <int n>
__device__ inline float largest_of(const float (&x)[n][4], float largest) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) largest = fmaxf(largest, fabsf(x[i][e]));
  }
  return largest;
}

// Sixteen columns of S, in units.
struct Carried {
  float S[kKeyTiles][4];
  float per_one = 1;

  // `state`: element (0, the first of this lane's columns), rows `stride` apart.
  __device__ void load(const float* state, int64_t stride, int lane) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) S[n][e] = state[(n * 8 + lane % 4 * 2 + e % 2) * stride + e / 2 * 8];
    }
  }
  __device__ void store(float* state, int64_t stride, int lane) const {
    const float one = 1 / per_one;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) state[(n * 8 + lane % 4 * 2 + e % 2) * stride + e / 2 * 8] = S[n][e] * one;
    }
  }

  // Units in which the largest element of S and the values is between 1 and 2, unless it is well within the
  // range. Below 2^-60 everything may vanish, beyond 2^60 it may be lost.
  __device__ void choose_units(float (&values)[kTiles][4]) {
    const float lanes_largest = largest_of(S, largest_of(values, 0));
    const float largest = __uint_as_float(warp_max_bits(__float_as_uint(lanes_largest)));
    if ((largest <= kLargest && largest >= kSmallest) || largest == 0) return;
    auto exponent = [](float x) { return static_cast<int>(__float_as_uint(x) >> 23); };
    const int wanted = min(max(exponent(per_one) + 127 - exponent(largest), 127 - 60), 127 + 60);
    const float next = __uint_as_float(static_cast<uint32_t>(wanted) << 23), factor = next / per_one;
    per_one = next;
    times(values, factor);
    times(S, factor);
  }

  // One chunk further.
  template <class Stage>
  __device__ void pass(const Stage& stage, Handover& handover, int warp, int lane) {
    float rest[kTiles][4];  // V, then beta (V - e^g K S)
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        rest[n][e] = stage.values[n * 8 + lane % 4 * 2 + e % 2][warp * 16 + lane / 4 + e / 2 * 8] * per_one;
      }
    }
    choose_units(rest);
    uint32_t operand[kDeltaBlocks][4];
    {
      uint32_t state[kKeySteps][4];
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step) {
        as_operand(state[step], S[2 * step], S[2 * step + 1]);
        handover.state[step][lane] = packed(state[step]);
      }
      if (lane == 0) handover.per_one[0] = per_one;
      float known[kTiles][4] = {};
      times_rows(known, state, stage.keys, lane);
      times_tokens(known, stage.before, lane);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) rest[n][e] -= known[n][e];
      }
      times_tokens(rest, stage.betas, lane);
    }
#pragma unroll
    for (int step = 0; step < kDeltaBlocks; ++step)
      as_operand(operand[step], rest[2 * step], rest[2 * step + 1]);
    float updates[kTiles][4] = {};
    times_triangle(updates, operand, stage.inverse, lane);
#pragma unroll
    for (int step = 0; step < kDeltaBlocks; ++step) {
      as_operand(operand[step], updates[2 * step], updates[2 * step + 1]);
      handover.updates[step][lane] = packed(operand[step]);
    }
    times(S, stage.before[kDeltaChunk - 1]);
    times_tokens(updates, stage.after, lane);
#pragma unroll
    for (int step = 0; step < kDeltaBlocks; ++step) {
      as_operand(operand[step], updates[2 * step], updates[2 * step + 1]);
#pragma unroll
      for (int n = 0; n < kKeyTiles / 2; ++n) {
        uint32_t b[4];
        load_turned_matrices(b, stage.keys + key_unit(step * 16 + lane % 16, n * 2 + lane / 16));
        multiply(S[2 * n], operand[step], b[0], b[1], F16{});
        multiply(S[2 * n + 1], operand[step], b[2], b[3], F16{});
      }
    }
  }
};

// The outputs of a chunk of `tokens` tokens. `to`: the first token's, of the first of this lane's columns.
template <class Stage>
__device__ inline void make_outputs(const Stage& stage, const Handover& handover, float* to, int64_t stride,
                                    int tokens, int lane) {
  float out[kTiles][4] = {};
  uint32_t state[kKeySteps][4], updates[kDeltaBlocks][4];
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) unpack(state[step], handover.state[step][lane]);
  times_rows(out, state, stage.queries, lane);
  times_tokens(out, stage.before, lane);
#pragma unroll
  for (int step = 0; step < kDeltaBlocks; ++step) unpack(updates[step], handover.updates[step][lane]);
  times_triangle(out, updates, stage.products, lane);
  const float one = 1 / handover.per_one[0];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int t = n * 8 + lane % 4 * 2 + e % 2;
      if (t < tokens) to[t * stride + e / 2 * 8] = out[n][e] * one;
    }
  }
}

template <int kPairs, int kStages>
__global__ void __launch_bounds__(kPairs * 64, 1) pass_kernel(DeltaChunks a) {
  using Memory = PassMemory<kPairs, kStages>;
  constexpr int kThreads = kPairs * 64, kColumns = Memory::kColumns;
  extern __shared__ __align__(128) unsigned char bytes[];
  Memory& m = *reinterpret_cast<Memory*>(bytes);
  let_next_start();
  wait_for_previous();
  const RecurrentSequence s = a.sequences[blockIdx.x];
  const int count = chunks_of(s);
  if (count == 0) return;
  const int head = blockIdx.y, key_head = head / (a.v_heads / a.k_heads), column0 = blockIdx.z * kColumns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = warp % kPairs;
  const int64_t chunk0 = chunks_before(a, blockIdx.x);
  const ChunkKeys* keys = a.keys + chunk0 * a.k_heads + key_head;
  const ChunkHead* heads = a.heads + chunk0 * a.v_heads + head;
  const float* values = a.qkv + s.first_row * a.qkv_stride + 2 * int64_t{a.k_heads} * kDeltaKeys +
                        int64_t{head} * a.v_dim + column0;
  // What the states of a chunk need, and the outputs of the chunk before.
  auto fetch = [&](int chunk) {
    if (chunk < count) {
      auto& stage = m.states[chunk % kStages];
      const ChunkHead& from = heads[int64_t{chunk} * a.v_heads];
      copy_all<kThreads>(stage.keys, keys[int64_t{chunk} * a.k_heads].keys);
      copy_all<kThreads>(stage.inverse, from.inverse);
      copy_all<kThreads>(stage.before, from.before);
      copy_all<kThreads>(stage.after, from.after);
      copy_all<kThreads>(stage.betas, from.betas);
      constexpr int kUnits = kColumns / 4, kRows = kThreads / kUnits;
      const int unit = threadIdx.x % kUnits;
#pragma unroll
      for (int i = 0; i < kDeltaChunk; i += kRows) {
        const int t = i + threadIdx.x / kUnits, row = chunk * kDeltaChunk + t;
        const bool valid = row < s.rows;
        copy_ahead(&stage.values[t][unit * 4], values + (valid ? row * a.qkv_stride : 0) + unit * 4, valid);
      }
    }
    if (chunk > 0 && chunk <= count) {
      auto& stage = m.outputs[(chunk - 1) % kStages];
      const ChunkHead& from = heads[int64_t{chunk - 1} * a.v_heads];
      copy_all<kThreads>(stage.queries, keys[int64_t{chunk - 1} * a.k_heads].queries);
      copy_all<kThreads>(stage.products, from.products);
      copy_all<kThreads>(stage.before, from.before);
    }
    end_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) fetch(i);

  const int column = column0 + pair * 16 + lane / 4;
  float* state = a.state + s.slot * a.state_stride + int64_t{head} * kDeltaKeys * a.v_dim + column;
  auto next_chunk = [&](int chunk) {
    await_copies<kStages - 2>();
    __syncthreads();
    fetch(chunk + kStages - 1);
  };
  if (warp < kPairs) {
    Carried carried;
    carried.load(state, a.v_dim, lane);
    for (int chunk = 0; chunk < count; ++chunk) {
      next_chunk(chunk);
      carried.pass(m.states[chunk % kStages], m.handovers[chunk % 2][pair], pair, lane);
    }
    next_chunk(count);
    carried.store(state, a.v_dim, lane);
  } else {
    next_chunk(0);
    for (int chunk = 0; chunk < count; ++chunk) {
      next_chunk(chunk + 1);
      float* to =
          a.out + (s.first_row + chunk * kDeltaChunk) * a.out_stride + int64_t{head} * a.v_dim + column;
      make_outputs(m.outputs[chunk % kStages], m.handovers[chunk % 2][pair], to, a.out_stride,
                   s.rows - chunk * kDeltaChunk, lane);
    }
  }
}

template <int kPairs, int kStages>
void start_pass(Stream& stream, const DeltaChunks& a) {
  using Memory = PassMemory<kPairs, kStages>;
  const dim3 grid(static_cast<unsigned>(a.count), static_cast<unsigned>(a.v_heads),
                  static_cast<unsigned>(a.v_dim / Memory::kColumns));
  launch(stream.queue(), pass_kernel<kPairs, kStages>, grid, dim3(kPairs * 64), sizeof(Memory), a);
}

}  // namespace

void pass_chunks(Stream& stream, const DeltaChunks& a) {
  // Few columns in a block, if all blocks have a processor each.
  const int64_t narrow = int64_t{a.count} * a.v_heads * a.v_dim / PassMemory<2, 3>::kColumns;
  if (narrow > stream.queue().processors() && a.v_dim % PassMemory<4, 2>::kColumns == 0)
    return start_pass<4, 2>(stream, a);
  start_pass<2, 3>(stream, a);
}

}  // namespace atom::ops::gpu_kernels
