// The part of absorbed latent attention that reads the cache, on tensor cores (mma.sync, Ampere and later).
//   score = q·c_u + q_pe·k_pe_u, out = sum of p_u c_u, with q and p rounded to the cache's type
// Bound: 2 * (576 + 512) flops per key and head; for few heads the bytes of the keys, each read once for up
// to 64 heads. Grid: (row, 64 heads, split of the keys). A block keeps 64 queries in shared memory and walks
// its keys, all or the selected ones, in tiles of 64 that are copied ahead, two deep. 8 warps: for scores 16
// heads and 32 keys each, for sums all heads and 64 lanes each. Rows of shared memory are swizzled: 16-byte
// piece i of row r lies at i ^ (r & 7). Splits of decodes leave their sums in scratch, which a second kernel
// merges.
#include <algorithm>

#include "ops/cuda/mma.h"
#include "ops/gpu/latent_kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kRank = 512, kRope = 64, kEntry = kRank + kRope, kPieces = kEntry / 8;
constexpr int kHeads = 64, kKeys = 64;  // of a block, of a tile
constexpr int kWeightStride = kKeys + 8;
constexpr int kMaxSplits = 64;
constexpr int kMergeGroups = 4, kMergeThreads = kMergeGroups * kRank / 4;

struct MmaArguments {
  float* out;
  float* partials;  // [row, head tile, split, head, kRank]
  float2* stats;    // [row, head tile, split, head]: largest score (base 2) and weight
  const float *q, *q_pe;
  const void* cache;
  const int32_t* selected;  // null: every position
  int64_t q_pe_stride, selected_stride, block_stride;
  Sequences sequences;
  int first_row, heads, query_dim, block_size, selection, splits;
  float scale;

  struct Keys {
    const int32_t* table;     // null: a row that pads
    const int32_t* selected;  // null: all
    int count;
  };
  __device__ Keys keys_of(int row) const {
    const AttentionSequence& s = sequences.of_row(row);
    const int position = s.context + row - s.first_row;
    if (selected == nullptr || position < selection) return {s.block_table, nullptr, position + 1};
    return {s.block_table, selected + row * selected_stride, selection};
  }
  // Keys of one split, and how many splits have any.
  __device__ int per_split(int count) const {
    const int keys = (count + splits - 1) / splits;
    return (keys + kKeys - 1) / kKeys * kKeys;
  }
};

template <class T>
struct Memory {
  T q[kHeads * kEntry];
  T keys[2][kKeys * kEntry];
  T weights[kHeads * kWeightStride];
  float largest[2][kHeads];  // of the two halves of a tile's keys; at the end, weights
  float correction[kHeads];
};

template <class T>
__device__ inline T* piece(T* rows, int row, int index) {
  return rows + row * kEntry + ((index ^ (row & 7)) * 8);
}

template <class T>
__device__ void load_queries(T* to, const MmaArguments& a, int row, int head0) {
  const float factor = a.scale * kLog2e;
  static_assert(kHeads * kPieces % kThreads == 0);
#pragma unroll 9
  for (int round = 0; round < kHeads * kPieces / kThreads; ++round) {
    const int i = round * kThreads + threadIdx.x;
    const int h = i / kPieces, p = i % kPieces, head = head0 + h;
    uint4 packed = {0, 0, 0, 0};
    if (head < a.heads) {
      const float* from =
          p < kRank / 8 ? a.q + (int64_t{blockIdx.x} * a.heads + head) * kRank + p * 8
                        : a.q_pe + row * a.q_pe_stride + int64_t{head} * a.query_dim + (p - kRank / 8) * 8;
      const float4 x = reinterpret_cast<const float4*>(from)[0], y = reinterpret_cast<const float4*>(from)[1];
      packed = {pack(x.x * factor, x.y * factor, T{}), pack(x.z * factor, x.w * factor, T{}),
                pack(y.x * factor, y.y * factor, T{}), pack(y.z * factor, y.w * factor, T{})};
    }
    *reinterpret_cast<uint4*>(piece(to, h, p)) = packed;
  }
}

// Starts to copy keys [first, first + kKeys), zeros from `end` on. Each warp takes 8.
template <class T>
__device__ void copy_keys(T* to, const MmaArguments& a, const MmaArguments::Keys& keys, int first, int end) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t offset = 0;  // of key warp * 8 + lane
  const int index = first + warp * 8 + lane;
  if (lane < 8 && index < end) {
    const int position = keys.selected == nullptr ? index : keys.selected[index];
    offset = keys.table[position / a.block_size] * a.block_stride + int64_t{position % a.block_size} * kEntry;
  }
#pragma unroll
  for (int key = 0; key < 8; ++key) {
    const int in_tile = warp * 8 + key;
    const bool valid = first + in_tile < end;
    const T* from = static_cast<const T*>(a.cache) + shuffle(offset, key);
    for (int p = lane; p < kPieces; p += 32) copy_ahead(piece(to, in_tile, p), from + p * 8, valid);
  }
  end_copies();
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) latent_kernel(MmaArguments a) {
  extern __shared__ __align__(128) unsigned char raw[];
  Memory<T>& m = *reinterpret_cast<Memory<T>*>(raw);
  let_next_start();
  wait_for_previous();
  const int row = a.first_row + blockIdx.x, head0 = blockIdx.y * kHeads, split = blockIdx.z;
  const int heads = min(kHeads, a.heads - head0);
  float* out = a.out + (int64_t{blockIdx.x} * a.heads + head0) * kRank;
  const MmaArguments::Keys keys = a.keys_of(row);
  if (keys.table == nullptr) {
    if (split == 0) {
      for (int i = threadIdx.x; i < heads * kRank; i += kThreads) out[i] = 0;
    }
    return;
  }
  const int per_split = a.per_split(keys.count), begin = split * per_split;
  const int end = min(begin + per_split, keys.count);
  if (begin >= end) return;
  const bool alone = per_split >= keys.count;

  copy_keys(m.keys[0], a, keys, begin, end);
  load_queries(m.q, a, row, head0);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head_tile = warp % 4, half = warp / 4;  // of this warp's scores
  float sums[4][8][4] = {};                         // [16 heads][8 lanes]
  float largest[2] = {kNone, kNone},
        weight[2] = {0, 0};  // of heads head_tile * 16 + lane / 4 and 8 behind it
  int buffer = 0;
  for (int first = begin; first < end; first += kKeys, buffer ^= 1) {
    await_copies<0>();
    __syncthreads();
    if (first + kKeys < end) copy_keys(m.keys[buffer ^ 1], a, keys, first + kKeys, end);
    const T* tile = m.keys[buffer];

    float scores[4][4] = {};
#pragma unroll 4
    for (int step = 0; step < kEntry / 16; ++step) {
      uint32_t q[4];
      load_matrices(q, piece(m.q, head_tile * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint32_t b[4];
        load_matrices(b, piece(const_cast<T*>(tile), half * 32 + n * 16 + lane / 16 * 8 + lane % 8,
                               step * 2 + lane / 8 % 2));
        multiply(scores[2 * n], q, b[0], b[1], T{});
        multiply(scores[2 * n + 1], q, b[2], b[3], T{});
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (first + half * 32 + n * 8 + lane % 4 * 2 + e % 2 >= end) scores[n][e] = kNone;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = kNone;
#pragma unroll
      for (int n = 0; n < 4; ++n) top = fmaxf(top, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
      top = fmaxf(top, shuffle_xor(top, 1));
      top = fmaxf(top, shuffle_xor(top, 2));
      if (lane % 4 == 0) m.largest[half][head_tile * 16 + lane / 4 + 8 * i] = top;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int h = head_tile * 16 + lane / 4 + 8 * i;
      const float top = fmaxf(largest[i], fmaxf(m.largest[0][h], m.largest[1][h]));
      const float correction = power_of_two(largest[i] - top);
      largest[i] = top;
      weight[i] *= correction;
      if (half == 0 && lane % 4 == 0) m.correction[h] = correction;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float p = power_of_two(scores[n][2 * i] - top), r = power_of_two(scores[n][2 * i + 1] - top);
        weight[i] += p + r;
        *reinterpret_cast<uint32_t*>(m.weights + h * kWeightStride + half * 32 + n * 8 + lane % 4 * 2) =
            pack(p, r, T{});
      }
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const float upper = m.correction[h * 16 + lane / 4], lower = m.correction[h * 16 + lane / 4 + 8];
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        sums[h][d][0] *= upper;
        sums[h][d][1] *= upper;
        sums[h][d][2] *= lower;
        sums[h][d][3] *= lower;
      }
    }
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t p[4][4];
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        load_matrices(p[h], m.weights + (h * 16 + lane % 16) * kWeightStride + step * 16 + lane / 16 * 8);
      }
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        uint32_t b[4];
        load_turned_matrices(
            b, piece(const_cast<T*>(tile), step * 16 + lane % 16, warp * 8 + d * 2 + lane / 16));
#pragma unroll
        for (int h = 0; h < 4; ++h) {
          multiply(sums[h][2 * d], p[h], b[0], b[1], T{});
          multiply(sums[h][2 * d + 1], p[h], b[2], b[3], T{});
        }
      }
    }
  }

  // Weights of both halves of the keys.
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    weight[i] += shuffle_xor(weight[i], 1);
    weight[i] += shuffle_xor(weight[i], 2);
    if (lane % 4 == 0) m.largest[half][head_tile * 16 + lane / 4 + 8 * i] = weight[i];
  }
  __syncthreads();
  const int64_t place = (int64_t{blockIdx.x} * gridDim.y + blockIdx.y) * a.splits + split;
  if (!alone && half == 0 && lane % 4 == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int h = head_tile * 16 + lane / 4 + 8 * i;
      a.stats[place * kHeads + h] = {largest[i], m.largest[0][h] + m.largest[1][h]};
    }
  }
  float* to = alone ? out : a.partials + place * kHeads * kRank;
#pragma unroll
  for (int h = 0; h < 4; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = h * 16 + lane / 4 + 8 * i;
      if (head >= heads) continue;
      const float factor = alone ? 1 / (m.largest[0][head] + m.largest[1][head]) : 1;
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        *reinterpret_cast<float2*>(to + int64_t{head} * kRank + warp * 64 + d * 8 + lane % 4 * 2) = {
            sums[h][d][2 * i] * factor, sums[h][d][2 * i + 1] * factor};
      }
    }
  }
}

// Adds the splits of one row and head. Grid: (row, head); a thread has 4 lanes of every kMergeGroups-th
// split.
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(MmaArguments a) {
  __shared__ float2 stats[kMaxSplits];
  __shared__ float4 parts[kMergeGroups][kRank / 4];
  let_next_start();
  wait_for_previous();
  const MmaArguments::Keys keys = a.keys_of(a.first_row + blockIdx.x);
  if (keys.table == nullptr) return;
  const int per_split = a.per_split(keys.count), active = (keys.count + per_split - 1) / per_split;
  if (active == 1) return;
  const int head = blockIdx.y, tiles = (a.heads + kHeads - 1) / kHeads;
  const int lanes = threadIdx.x % (kRank / 4), group = threadIdx.x / (kRank / 4);
  const int64_t place = (int64_t{blockIdx.x} * tiles + head / kHeads) * a.splits;
  if (threadIdx.x < active) stats[threadIdx.x] = a.stats[(place + threadIdx.x) * kHeads + head % kHeads];
  const float4* from =
      reinterpret_cast<const float4*>(a.partials + (place * kHeads + head % kHeads) * kRank) + lanes;
  __syncthreads();
  float largest = kNone, weight = 0;
  for (int i = 0; i < active; ++i) largest = fmaxf(largest, stats[i].x);
  for (int i = 0; i < active; ++i) weight += power_of_two(stats[i].x - largest) * stats[i].y;
  float4 sum = {0, 0, 0, 0};
#pragma unroll 8
  for (int i = group; i < active; i += kMergeGroups) {
    const float share = power_of_two(stats[i].x - largest);
    const float4 x = from[int64_t{i} * kHeads * kRank / 4];
    sum.x += share * x.x;
    sum.y += share * x.y;
    sum.z += share * x.z;
    sum.w += share * x.w;
  }
  parts[group][lanes] = sum;
  __syncthreads();
  if (group > 0) return;
#pragma unroll
  for (int g = 1; g < kMergeGroups; ++g) {
    const float4 x = parts[g][lanes];
    sum.x += x.x;
    sum.y += x.y;
    sum.z += x.z;
    sum.w += x.w;
  }
  const float factor = 1 / weight;
  reinterpret_cast<float4*>(a.out + (int64_t{blockIdx.x} * a.heads + head) * kRank)[lanes] = {
      sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor};
}

// Decodes are split until every processor has a block; rows of prompts are many enough.
int64_t splits_of(const Stream& stream, const LatentAttention& op, int64_t count) {
  if (!Sequences(*op.batch).one_row_each) return 1;
  const int64_t blocks = count * ceil_div(op.shape.heads, kHeads);
  return std::clamp<int64_t>(stream.queue().processors() / blocks, 1, kMaxSplits);
}

// As many as any number of decodes asks for.
int64_t split_heads(const Stream& stream, const LatentAttention& op, int64_t count) {
  return splits_of(stream, op, count) == 1 ? 0 : int64_t{stream.queue().processors()} * kHeads;
}

int64_t scratch_bytes(const Stream& stream, const LatentAttention& op, int64_t count) {
  return split_heads(stream, op, count) * static_cast<int64_t>(kRank * sizeof(float) + sizeof(float2));
}

void run_mma(Stream& stream, const LatentRows& rows) {
  const LatentAttention& op = rows.op;
  const int64_t splits = splits_of(stream, op, rows.count);
  auto* partials = reinterpret_cast<float*>(rows.scratch);
  const MmaArguments a{
      .out = rows.out,
      .partials = partials,
      .stats = reinterpret_cast<float2*>(partials + split_heads(stream, op, rows.count) * kRank),
      .q = rows.q,
      .q_pe = op.q.as<float>() + op.shape.nope_dim,
      .cache = op.cache.data,
      .selected = op.selected.as<int32_t>(),
      .q_pe_stride = op.q.strides[0],
      .selected_stride = op.selected.strides[0],
      .block_stride = op.cache.strides[0],
      .sequences = Sequences(*op.batch),
      .first_row = static_cast<int>(rows.first),
      .heads = op.shape.heads,
      .query_dim = op.shape.query_dim(),
      .block_size = op.batch->block_size,
      .selection = op.selected ? static_cast<int>(op.selected.dim(1)) : 0,
      .splits = static_cast<int>(splits),
      .scale = op.scale};
  const auto count = static_cast<unsigned>(rows.count);
  const dim3 grid(count, static_cast<unsigned>(ceil_div(op.shape.heads, kHeads)),
                  static_cast<unsigned>(splits));
  if (op.cache.dtype == DType::bf16) {
    launch(stream.queue(), latent_kernel<Bf16>, grid, dim3(kThreads), sizeof(Memory<Bf16>), a);
  } else {
    launch(stream.queue(), latent_kernel<F16>, grid, dim3(kThreads), sizeof(Memory<F16>), a);
  }
  if (splits > 1) {
    launch(stream.queue(), merge_kernel, dim3(count, static_cast<unsigned>(op.shape.heads)),
           dim3(kMergeThreads), 0, a);
  }
}

}  // namespace

const char* refuse_latent_mma(const Stream& stream, const LatentAttention& op) {
  if (stream.queue().capability() < 90) return "needs 227 KiB of shared memory in a block";
  if (op.cache.dtype == DType::f32) return "rounds to a cache of bf16 or f16";
  if (op.shape.kv_rank != kRank || op.shape.rope_dim != kRope) return "for entries of 512 + 64 lanes";
  if (op.q.strides[0] % 4 != 0 || op.shape.nope_dim % 4 != 0 || !aligned16(op.q.data))
    return "rows are not aligned";
  return nullptr;
}

void latent_mma_rows(Stream& stream, const LatentAttention& op, int64_t begin, int64_t end) {
  latent_absorbed(stream, op, {scratch_bytes, run_mma}, begin, end);
}

void latent_attention_mma(Stream& stream, const LatentAttention& op) {
  latent_mma_rows(stream, op, 0, op.out.dim(0));
}

}  // namespace atom::ops::gpu_kernels
