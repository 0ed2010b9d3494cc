// The gated delta rule of prompts, chunk by chunk on tensor cores: what its two kernels share.
// With g_i the sum of the logs of the decays of a chunk up to token i, and S the state before the chunk:
//   (1 + A) U = beta (V - e^g K S)        A_ij = beta_i e^(g_i - g_j) k_i·k_j for j < i
//   out = e^g Q S + P U                   P_ij = e^(g_i - g_j) q_i·k_j for j <= i
//   S = e^(g_last) S + sum over i of k_i e^(g_last - g_i) u_iᵀ
// Only differences of logs are raised, none above 0. The first kernel has every chunk by itself and leaves
// normalised keys and queries, T = (1 + A)^-1 and P; the second carries S from chunk to chunk. Keys,
// queries, T and P have no element beyond 1, so f16 holds them.
#pragma once
#include "ops/cuda/mma.h"
#include "ops/gpu/delta_kernels.h"

namespace atom::ops::gpu_kernels {

constexpr int kDeltaChunk = 64;  // tokens
constexpr int kDeltaKeys = 128;  // lanes of a key
constexpr int kDeltaBlocks = kDeltaChunk / 16;

// 16 bytes of f16 are a unit. Rows of keys and queries have 16, of which unit i of row r lies at i ^ (r % 8).
constexpr int kKeyUnits = kDeltaChunk * kDeltaKeys / 8;
__device__ inline int key_unit(int row, int unit) { return row * (kDeltaKeys / 8) + (unit ^ row % 8); }

// T and P are blocks of 16 x 16 on and below the diagonal, row by row; rows of a block have 2 units.
constexpr int kTriangleUnits = kDeltaBlocks * (kDeltaBlocks + 1) / 2 * 32;
__device__ inline int triangle_unit(int block_row, int block_column, int row, int unit) {
  return (block_row * (block_row + 1) / 2 + block_column) * 32 + row * 2 + (unit ^ row / 4 % 2);
}

// What the first kernel leaves of a chunk for a key head and for a value head.
struct ChunkKeys {
  uint4 keys[kKeyUnits], queries[kKeyUnits];
};
struct ChunkHead {
  uint4 inverse[kTriangleUnits], products[kTriangleUnits];  // T, P
  float before[kDeltaChunk], after[kDeltaChunk];            // e^g, e^(g_last - g)
  float betas[kDeltaChunk];
};

struct DeltaChunks {
  float* out;
  const float *qkv, *a, *b, *a_log, *dt_bias;
  float* state;
  int64_t out_stride, qkv_stride, a_stride, b_stride, state_stride;
  const RecurrentSequence* sequences;
  int count, k_heads, v_heads, v_dim;
  float q_scale;
  ChunkKeys* keys;   // [chunk, key head]
  ChunkHead* heads;  // [chunk, value head]
};

// Two neighbouring 16 x 8 results as the left operand of a product over their 16 columns.
__device__ inline void as_operand(uint32_t (&r)[4], const float (&low)[4], const float (&high)[4]) {
  r[0] = pack(low[0], low[1], F16{});
  r[1] = pack(low[2], low[3], F16{});
  r[2] = pack(high[0], high[1], F16{});
  r[3] = pack(high[2], high[3], F16{});
}

__device__ inline int chunks_of(const RecurrentSequence& s) {
  return takes_chunks(s) ? (s.rows + kDeltaChunk - 1) / kDeltaChunk : 0;
}
// Chunks of the sequences before `sequence`; for whole warps.
__device__ inline int chunks_before(const DeltaChunks& a, int sequence) {
  int chunks = 0;
  for (int i = threadIdx.x % 32; i < sequence; i += 32) chunks += chunks_of(a.sequences[i]);
  return warp_sum(chunks);
}

void prepare_chunks(Stream& stream, const DeltaChunks& a, int64_t chunks);
void pass_chunks(Stream& stream, const DeltaChunks& a);

}  // namespace atom::ops::gpu_kernels
