// What chunks of the delta rule need from each other is their state alone: this kernel does everything else.
//   T = (1 + A)^-1 beta, P, normalised keys and queries, as delta_chunks.h says
// Bound: bytes of queries and keys, read once, and of what is left. Grid: (chunk, key head); 4 warps have 16
// rows each of the products of queries and keys with keys. Then, for two value heads at a time, a thread
// solves one column of T in float32: 16 rows at once for what lies left of their block, then row by row.
#include "ops/cuda/delta_chunks.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kSides = kThreads / kDeltaChunk;  // value heads at a time
constexpr int kLinkStride = kDeltaChunk + 4;    // fragments fall into different banks
constexpr int kRowsLoaded = 4;                  // by a warp at a time
constexpr float kMostFading = 32;               // of a token: e^-32 of what was there is nothing
constexpr float kNormEps = 1e-6f;
static_assert(kWarps == kDeltaBlocks && kSides == 2);

struct Memory {
  union {
    struct {
      uint4 keys[kKeyUnits], queries[kKeyUnits];
    };
    float inverse[kSides][kDeltaChunk][kDeltaChunk];  // once the products are made
  };
  float links[kSides][kDeltaChunk][kLinkStride];  // A
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

// Rows `column`.. of T to shared memory, from block row `first` on: above, the column is zero.
__device__ inline void solve_column(const float (*links)[kLinkStride], float (*inverse)[kDeltaChunk],
                                    int column, int first) {
  for (int block = first; block < kDeltaBlocks; ++block) {
    const int row0 = block * 16;
    float x[16] = {};
    for (int k = first * 16; k < row0; k += 4) {
      float solved[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) solved[i] = inverse[k + i][column];
#pragma unroll
      for (int r = 0; r < 16; ++r) {
        const float4 link = *reinterpret_cast<const float4*>(&links[row0 + r][k]);
        x[r] -= link.x * solved[0] + link.y * solved[1] + link.z * solved[2] + link.w * solved[3];
      }
    }
#pragma unroll
    for (int r = 0; r < 16; ++r) {
      if (row0 + r == column) x[r] += 1;
#pragma unroll
      for (int k = 0; k < r; k += 4) {
        const float4 link = *reinterpret_cast<const float4*>(&links[row0 + r][row0 + k]);
        x[r] -= link.x * x[k];
        if (k + 1 < r) x[r] -= link.y * x[k + 1];
        if (k + 2 < r) x[r] -= link.z * x[k + 2];
        if (k + 3 < r) x[r] -= link.w * x[k + 3];
      }
      inverse[row0 + r][column] = x[r];
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
      keep_row(m.queries, left.queries, t, lane, q[i], a.q_scale / sqrtf(warp_sum(size(q[i])) + kNormEps));
      keep_row(m.keys, left.keys, t, lane, k[i], 1 / sqrtf(warp_sum(size(k[i])) + kNormEps));
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
    {  // a thread has a token of one head
      const int side = threadIdx.x / kDeltaChunk, t = threadIdx.x % kDeltaChunk, head = head0 + side;
      float fade = 0, beta = 0;
      if (side < sides && t < tokens) {
        const float x = a.a[(first_row + t) * a.a_stride + head] + a.dt_bias[head];
        fade = fmaxf(-expf(a.a_log[head]) * (x > 20 ? x : log1pf(expf(x))), -kMostFading);
        beta = 1 / (1 + expf(-a.b[(first_row + t) * a.b_stride + head]));
      }
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const float below = shuffle_up(fade, step);
        if (lane >= step) fade += below;
      }
      m.fades[side][t] = fade;
      m.betas[side][t] = beta;
      __syncthreads();
      const float half = m.fades[side][31];
      __syncthreads();
      if (t >= 32) m.fades[side][t] = fade += half;
      __syncthreads();
      if (side < sides) {
        heads[side].before[t] = expf(fade);
        heads[side].after[t] = expf(m.fades[side][kDeltaChunk - 1] - fade);
      }
    }
    for (int side = 0; side < sides; ++side) {
      auto* products = reinterpret_cast<uint32_t*>(heads[side].products);
      const float* fades = m.fades[side];
      const int i0 = warp * 16 + lane / 4;
#pragma unroll
      for (int n = 0; n < kDeltaChunk / 8; ++n) {
        if (n / 2 > warp) continue;
        const int j = n * 8 + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = i0 + half * 8;
          const float r0 = j <= i ? expf(fades[i] - fades[j]) : 0;
          const float r1 = j + 1 <= i ? expf(fades[i] - fades[j + 1]) : 0;
          const float beta = m.betas[side][i];
          *reinterpret_cast<float2*>(&m.links[side][i][j]) = {beta * r0 * key_products[n][2 * half],
                                                              beta * r1 * key_products[n][2 * half + 1]};
          products[triangle_unit(warp, n / 2, i % 16, n % 2) * 4 + lane % 4] =
              pack(r0 * query_products[n][2 * half], r1 * query_products[n][2 * half + 1], F16{});
        }
      }
    }
    __syncthreads();
    {  // columns of the right half have half as many rows: which warp has them changes from block to block
      const int team = (warp + blockIdx.x) % kWarps, side = team / 2;
      if (side < sides) {
        solve_column(m.links[side], m.inverse[side], team % 2 * 32 + lane, team % 2 * (kDeltaBlocks / 2));
      }
    }
    __syncthreads();
    for (int u = threadIdx.x; u < sides * kTriangleUnits; u += kThreads) {
      const int side = u / kTriangleUnits, at = u % kTriangleUnits, block = at / 32;
      const int block_row = block >= 6 ? 3 : block >= 3 ? 2 : block >= 1;
      const int block_column = block - block_row * (block_row + 1) / 2, row = at % 32 / 2;
      const int column = block_column * 16 + (at % 2 ^ row / 4 % 2) * 8;
      const float* x = &m.inverse[side][block_row * 16 + row][column];
      const float* beta = &m.betas[side][column];
      heads[side].inverse[at] = {
          pack(x[0] * beta[0], x[1] * beta[1], F16{}), pack(x[2] * beta[2], x[3] * beta[3], F16{}),
          pack(x[4] * beta[4], x[5] * beta[5], F16{}), pack(x[6] * beta[6], x[7] * beta[7], F16{})};
    }
    __syncthreads();
  }
}

}  // namespace

void prepare_chunks(Stream& stream, const DeltaChunks& a, int64_t chunks) {
  launch(stream.queue(), prepare_kernel,
         dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(a.k_heads)), dim3(kThreads),
         sizeof(Memory), a);
}

}  // namespace atom::ops::gpu_kernels
