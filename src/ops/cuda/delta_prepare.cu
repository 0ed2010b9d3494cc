// What chunks of the delta rule need from each other is their state alone: this kernel does everything else.
//   T = (1 + A)^-1, P, normalised keys and queries, as delta_chunks.h says
// Bound: bytes of queries and keys, read once, and of what is left. Grid: (chunk, key head); 4 warps have 16
// rows each of the products of queries and keys with keys. Then, for two value heads at a time, T by blocks
// of 16: those on the diagonal column by column in float32, a thread each, those below them by products,
//   T_ij = -T_ii (sum over k from j to i - 1 of A_ik T_kj)
// which are made transposed, so that a result is in place as the left operand of the next.
#include "ops/cuda/delta_chunks.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kSides = kThreads / kDeltaChunk;  // value heads at a time
constexpr int kLinkStride = 20;                 // fragments fall into different banks
constexpr int kRowsLoaded = 8;                  // by a warp at a time
constexpr float kMostFading = 32;               // of a token: e^-32 of what was there is nothing
constexpr float kNormEps = 1e-6f;
static_assert(kWarps == kDeltaBlocks && kSides == 2);

struct Memory {
  uint4 keys[kKeyUnits], queries[kKeyUnits];
  uint4 triangle[kSides][kTriangleUnits];              // A below the diagonal's blocks, T on it
  float links[kSides][kDeltaBlocks][16][kLinkStride];  // A on the diagonal
  float fades[kSides][kDeltaChunk], betas[kSides][kDeltaChunk];
};

struct Place {
  int sequence = -1, first = 0;  // of the chunk's tokens in the sequence
};
// For whole warps.
__device__ inline Place find_chunk(const DeltaChunks& a, int chunk) {
  const int lane = threadIdx.x % 32;
  int passed = 0;
  for (int first = 0; first < a.count; first += 32) {
    const int own = first + lane < a.count ? chunks_of(a.sequences[first + lane]) : 0;
    int sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int below = shuffle_up(sum, step);
      if (lane >= step) sum += below;
    }
    const LaneMask behind = ballot(passed + sum > chunk);
    if (behind != 0) {
      const int at = __ffs(static_cast<int>(behind)) - 1;
      return {first + at, (chunk - passed - shuffle(sum - own, at)) * kDeltaChunk};
    }
    passed += shuffle(sum, 31);
  }
  return {};
}

__device__ inline void keep_row(uint4* rows, uint4* left, int t, int lane, const float4& x, float scale) {
  const int at = key_unit(t, lane / 2) * 2 + lane % 2;
  const uint2 packed = {pack(x.x * scale, x.y * scale, F16{}), pack(x.z * scale, x.w * scale, F16{})};
  reinterpret_cast<uint2*>(rows)[at] = packed;
  reinterpret_cast<uint2*>(left)[at] = packed;
}

// An 8 x 8 matrix, a row in every four lanes, transposed.
__device__ inline uint32_t turn_matrix(uint32_t x) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}

// Column `column` of the inverse of a block on the diagonal, to the block's units.
__device__ inline void solve_column(const float (*links)[kLinkStride], uint16_t* to, int column) {
  float x[16];
#pragma unroll
  for (int r = 0; r < 16; ++r) x[r] = r == column ? 1 : 0;
#pragma unroll
  for (int k = 0; k < 16; k += 4) {
    // These four rows are known but for each other; then all rows below see them.
#pragma unroll
    for (int r = k + 1; r < 16; ++r) {
      const float4 link = *reinterpret_cast<const float4*>(&links[r][k]);
      x[r] -= link.x * x[k];
      if (k + 1 < r) x[r] -= link.y * x[k + 1];
      if (k + 2 < r) x[r] -= link.z * x[k + 2];
      if (k + 3 < r) x[r] -= link.w * x[k + 3];
    }
  }
#pragma unroll
  for (int r = 0; r < 16; ++r) {
    const int unit = triangle_unit(0, 0, r, column / 8);
    to[unit * 8 + column % 8] = static_cast<uint16_t>(pack(x[r], 0, F16{}));
  }
}

// The blocks of T below the diagonal in block column kColumn.
template <int kColumn>
__device__ inline void solve_blocks(const uint4* triangle, uint32_t* left, int lane) {
  uint32_t solved[kDeltaBlocks][4];  // transposed
  load_turned_matrices(solved[kColumn],
                       triangle + triangle_unit(kColumn, kColumn, lane / 16 * 8 + lane % 8, lane / 8 % 2));
  auto load_block = [&](uint32_t(&b)[4], int row, int column) {
    load_matrices(b, triangle + triangle_unit(row, column, lane / 16 * 8 + lane % 8, lane / 8 % 2));
  };
#pragma unroll
  for (int i = kColumn + 1; i < kDeltaBlocks; ++i) {
    float sums[2][4] = {}, result[2][4] = {};
    uint32_t b[4];
#pragma unroll
    for (int k = kColumn; k < i; ++k) {
      load_block(b, i, k);
      multiply(sums[0], solved[k], b[0], b[1], F16{});
      multiply(sums[1], solved[k], b[2], b[3], F16{});
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[0][e] = -sums[0][e], sums[1][e] = -sums[1][e];
    uint32_t operand[4];
    as_operand(operand, sums[0], sums[1]);
    load_block(b, i, i);
    multiply(result[0], operand, b[0], b[1], F16{});
    multiply(result[1], operand, b[2], b[3], F16{});
    as_operand(solved[i], result[0], result[1]);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int unit = triangle_unit(i, kColumn, part / 2 * 8 + lane / 4, part % 2);
      left[unit * 4 + lane % 4] = turn_matrix(solved[i][part]);
    }
  }
}

__global__ void __launch_bounds__(kThreads) prepare_kernel(DeltaChunks a) {
  extern __shared__ __align__(128) unsigned char bytes[];
  Memory& m = *reinterpret_cast<Memory*>(bytes);
  let_next_start();
  wait_for_previous();
  const Place place = find_chunk(a, blockIdx.x);
  if (place.sequence < 0) return;
  const RecurrentSequence s = a.sequences[place.sequence];
  const int tokens = min(kDeltaChunk, s.rows - place.first);
  const int64_t first_row = s.first_row + place.first;
  const int key_head = blockIdx.y, per_key = a.v_heads / a.k_heads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  ChunkKeys& left = a.keys[int64_t{blockIdx.x} * a.k_heads + key_head];
  const float4* q_rows = reinterpret_cast<const float4*>(a.qkv + int64_t{key_head} * kDeltaKeys) + lane;
  const float4* k_rows = q_rows + a.k_heads * (kDeltaKeys / 4);
#pragma unroll
  for (int begin = 0; begin < 16; begin += kRowsLoaded) {
    float4 q[kRowsLoaded], k[kRowsLoaded];
#pragma unroll
    for (int i = 0; i < kRowsLoaded; ++i) {
      const int t = warp * 16 + begin + i;
      const int64_t at = (first_row + t) * (a.qkv_stride / 4);
      q[i] = t < tokens ? q_rows[at] : float4{0, 0, 0, 0};
      k[i] = t < tokens ? k_rows[at] : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kRowsLoaded; ++i) {
      const int t = warp * 16 + begin + i;
      auto size = [](const float4& x) { return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w; };
      keep_row(m.queries, left.queries, t, lane, q[i], a.q_scale * rsqrtf(warp_sum(size(q[i])) + kNormEps));
      keep_row(m.keys, left.keys, t, lane, k[i], rsqrtf(warp_sum(size(k[i])) + kNormEps));
    }
  }
  __syncthreads();

  float key_products[kDeltaChunk / 8][4] = {}, query_products[kDeltaChunk / 8][4] = {};
#pragma unroll
  for (int step = 0; step < kDeltaKeys / 16; ++step) {
    uint32_t key[4], query[4];
    const int own = key_unit(warp * 16 + lane % 16, step * 2 + lane / 16);
    load_matrices(key, m.keys + own);
    load_matrices(query, m.queries + own);
#pragma unroll
    for (int n = 0; n < kDeltaBlocks; ++n) {
      if (n > warp) continue;
      uint32_t other[4];
      load_matrices(other, m.keys + key_unit(n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(key_products[2 * n + half], key, other[2 * half], other[2 * half + 1], F16{});
        multiply(query_products[2 * n + half], query, other[2 * half], other[2 * half + 1], F16{});
      }
    }
  }

  for (int done = 0; done < per_key; done += kSides) {
    const int head0 = key_head * per_key + done, sides = min(kSides, per_key - done);
    ChunkHead* heads = a.heads + int64_t{blockIdx.x} * a.v_heads + head0;
    const int own_side = threadIdx.x / kDeltaChunk, own_token = threadIdx.x % kDeltaChunk;
    float fade = 0, beta = 0;
    if (own_side < sides && own_token < tokens) {
      const int64_t row = first_row + own_token;
      const int head = head0 + own_side;
      const float x = a.a[row * a.a_stride + head] + a.dt_bias[head];
      fade = fmaxf(-expf(a.a_log[head]) * (x > 20 ? x : log1pf(expf(x))), -kMostFading);
      beta = 1 / (1 + expf(-a.b[row * a.b_stride + head]));
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float below = shuffle_up(fade, step);
      if (lane >= step) fade += below;
    }
    __syncthreads();  // the heads before are done
    m.betas[own_side][own_token] = beta;
    if (own_token < 32) m.fades[own_side][own_token] = fade;
    __syncthreads();
    if (own_token >= 32) m.fades[own_side][own_token] = fade += m.fades[own_side][31];
    __syncthreads();
    if (own_side < sides) {
      ChunkHead& head = heads[own_side];
      head.before[own_token] = expf(fade);
      head.after[own_token] = expf(m.fades[own_side][kDeltaChunk - 1] - fade);
      head.betas[own_token] = beta;
    }
    for (int side = 0; side < sides; ++side) {
      auto* products = reinterpret_cast<uint32_t*>(heads[side].products);
      auto* triangle = reinterpret_cast<uint32_t*>(m.triangle[side]);
      const float* fades = m.fades[side];
#pragma unroll
      for (int n = 0; n < kDeltaChunk / 8; ++n) {
        if (n / 2 > warp) continue;
        const int column = n % 2 * 8 + lane % 4 * 2, j = n / 2 * 16 + column;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = lane / 4 + half * 8, i = warp * 16 + row;
          const float r0 = j <= i ? expf(fades[i] - fades[j]) : 0;
          const float r1 = j + 1 <= i ? expf(fades[i] - fades[j + 1]) : 0;
          const float a0 = m.betas[side][i] * r0 * key_products[n][2 * half];
          const float a1 = m.betas[side][i] * r1 * key_products[n][2 * half + 1];
          const int word = triangle_unit(warp, n / 2, row, n % 2) * 4 + lane % 4;
          if (n / 2 == warp) {
            *reinterpret_cast<float2*>(&m.links[side][warp][row][column]) = {a0, a1};
          } else {
            triangle[word] = pack(a0, a1, F16{});
          }
          products[word] =
              pack(r0 * query_products[n][2 * half], r1 * query_products[n][2 * half + 1], F16{});
        }
      }
    }
    __syncthreads();
    if (own_side < sides) {
      const int block = own_token / 16;
      solve_column(m.links[own_side][block],
                   reinterpret_cast<uint16_t*>(m.triangle[own_side] + triangle_unit(block, block, 0, 0)),
                   own_token % 16);
    }
    __syncthreads();
    if (own_side < sides) {
      const uint4* triangle = m.triangle[own_side];
      uint4* inverse = heads[own_side].inverse;
      for (int u = own_token; u < kDeltaBlocks * 32; u += kDeltaChunk) {
        const int at = triangle_unit(u / 32, u / 32, 0, 0) + u % 32;
        inverse[at] = triangle[at];
      }
      auto* words = reinterpret_cast<uint32_t*>(inverse);
      if (warp % 2 == 0) {
        solve_blocks<0>(triangle, words, lane);
      } else {
        solve_blocks<1>(triangle, words, lane);
        solve_blocks<2>(triangle, words, lane);
      }
    }
  }
}

}  // namespace

void prepare_chunks(Stream& stream, const DeltaChunks& a, int64_t chunks) {
  launch(stream.queue(), prepare_kernel,
         dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(a.k_heads)), dim3(kThreads),
         sizeof(Memory), a);
}

}  // namespace atom::ops::gpu_kernels
