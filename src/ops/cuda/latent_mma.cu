// The part of absorbed latent attention that reads the cache, on tensor cores (mma.sync, Ampere and later).
//   score = q·c_u + q_pe·k_pe_u, out = sum of p_u c_u, with q and p rounded to the cache's type
// Bound: 2 * (576 + 512) flops per key and head; for few heads the bytes of the keys, each read once for up
// to 64 heads; for a row or two of selected keys latency, so that 16 heads have a block. Grid: (row, 64 or 16
// heads, split of the keys). A block keeps its queries in shared memory and walks its keys, all or the
// selected ones, in tiles of 64 that are copied ahead, two deep; the first are under way before the queries
// have been projected. 8 warps: for scores 16 heads and 32 or 8 keys each, for sums all heads and 64 lanes
// each. Rows of shared memory are swizzled: 16-byte piece i of row r lies at i ^ (r & 7). Splits of decodes
// leave their sums in scratch, which a second kernel merges.
#include <algorithm>

#include "ops/cuda/mma.h"
#include "ops/gpu/latent_kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kRank = 512, kRope = 64, kEntry = kRank + kRope, kPieces = kEntry / 8;
constexpr int kKeys = 64;  // of a tile
constexpr int kWeightStride = kKeys + 8;
constexpr int kMaxSplits = 64;
constexpr int kMergeLanes = kRank / 2, kMergeGroups = 8;  // lanes of a head in a block
constexpr int kMergeThreads = kMergeGroups * kMergeLanes / 4;

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
  int tile_heads;  // of a block
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

template <class T, int kHeads>
struct Memory {
  static constexpr int kParts = kWarps / (kHeads / 16);  // of the keys of a tile
  T q[kHeads * kEntry];
  T keys[2][kKeys * kEntry];
  T weights[kHeads * kWeightStride];
  float largest[kParts][kHeads];  // of the parts of a tile's keys; at the end, weights
  float correction[kHeads];
};

template <class T>
__device__ inline T* piece(T* rows, int row, int index) {
  return rows + row * kEntry + ((index ^ (row & 7)) * 8);
}

template <class T, int kHeads>
__device__ void load_queries(T* to, const MmaArguments& a, int row, int head0) {
  const float factor = a.scale * kLog2e;
  constexpr int kAll = kHeads * kPieces;
#pragma unroll 9
  for (int round = 0; round < (kAll + kThreads - 1) / kThreads; ++round) {
    const int i = round * kThreads + threadIdx.x;
    if (kAll % kThreads != 0 && i >= kAll) break;
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

// Scores of a warp's 16 heads with 32 keys.
template <class T>
__device__ inline void score_keys(float (&scores)[4][4], T* q, T* keys) {
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int step = 0; step < kEntry / 16; ++step) {
    uint32_t a[4];
    load_matrices(a, piece(q, lane % 16, step * 2 + lane / 16));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t b[4];
      load_matrices(b, piece(keys, n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
      multiply(scores[2 * n], a, b[0], b[1], T{});
      multiply(scores[2 * n + 1], a, b[2], b[3], T{});
    }
  }
}
// With 8 keys; four sums, so that products need not wait for each other.
template <class T>
__device__ inline void score_keys(float (&scores)[1][4], T* q, T* keys) {
  const int lane = threadIdx.x % 32;
  float sums[4][4] = {};
#pragma unroll 3
  for (int steps = 0; steps < kEntry / 16; steps += 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = steps + half * 2;
      uint32_t b[4];
      load_matrices(b, piece(keys, lane % 8, step * 2 + lane / 8));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
        load_matrices(a, piece(q, lane % 16, (step + i) * 2 + lane / 16));
        multiply(sums[half * 2 + i], a, b[2 * i], b[2 * i + 1], T{});
      }
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) scores[0][e] = sums[0][e] + sums[1][e] + (sums[2][e] + sums[3][e]);
}

template <class T, int kHeads>
__global__ void __launch_bounds__(kThreads, 1) latent_kernel(MmaArguments a) {
  constexpr int kHeadTiles = kHeads / 16, kParts = Memory<T, kHeads>::kParts, kPartKeys = kKeys / kParts;
  constexpr int kEights = kPartKeys / 8;
  extern __shared__ __align__(128) unsigned char raw[];
  Memory<T, kHeads>& m = *reinterpret_cast<Memory<T, kHeads>*>(raw);
  const int row = a.first_row + blockIdx.x, head0 = blockIdx.y * kHeads, split = blockIdx.z;
  const int heads = min(kHeads, a.heads - head0);
  float* out = a.out + (int64_t{blockIdx.x} * a.heads + head0) * kRank;
  const MmaArguments::Keys keys = a.keys_of(row);
  const int per_split = a.per_split(keys.count), begin = split * per_split;
  const int end = keys.table == nullptr ? begin : min(begin + per_split, keys.count);
  const bool alone = per_split >= keys.count;
  // What chose and stored the keys had ended when the projection of the queries let this kernel start.
  if (begin < end) copy_keys(m.keys[0], a, keys, begin, end);
  let_next_start();
  wait_for_previous();
  if (keys.table == nullptr && split == 0) {
    for (int i = threadIdx.x; i < heads * kRank; i += kThreads) out[i] = 0;
  }
  if (begin >= end) return;

  load_queries<T, kHeads>(m.q, a, row, head0);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head_tile = warp % kHeadTiles, part = warp / kHeadTiles;  // of this warp's scores
  float sums[kHeadTiles][8][4] = {};                                  // [16 heads][8 lanes]
  float largest[2] = {kNone, kNone},
        weight[2] = {0, 0};  // of heads head_tile * 16 + lane / 4 and 8 behind it
  int buffer = 0;
  for (int first = begin; first < end; first += kKeys, buffer ^= 1) {
    await_copies<0>();
    __syncthreads();
    if (first + kKeys < end) copy_keys(m.keys[buffer ^ 1], a, keys, first + kKeys, end);
    T* tile = m.keys[buffer];

    float scores[kEights][4] = {};
    score_keys(scores, m.q + head_tile * 16 * kEntry, tile + part * kPartKeys * kEntry);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (first + part * kPartKeys + n * 8 + lane % 4 * 2 + e % 2 >= end) scores[n][e] = kNone;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = kNone;
#pragma unroll
      for (int n = 0; n < kEights; ++n) top = fmaxf(top, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
      top = fmaxf(top, shuffle_xor(top, 1));
      top = fmaxf(top, shuffle_xor(top, 2));
      if (lane % 4 == 0) m.largest[part][head_tile * 16 + lane / 4 + 8 * i] = top;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int h = head_tile * 16 + lane / 4 + 8 * i;
      float top = largest[i];
#pragma unroll
      for (int p = 0; p < kParts; ++p) top = fmaxf(top, m.largest[p][h]);
      const float correction = power_of_two(largest[i] - top);
      largest[i] = top;
      weight[i] *= correction;
      if (part == 0 && lane % 4 == 0) m.correction[h] = correction;
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const float p = power_of_two(scores[n][2 * i] - top), r = power_of_two(scores[n][2 * i + 1] - top);
        weight[i] += p + r;
        *reinterpret_cast<uint32_t*>(m.weights + h * kWeightStride + part * kPartKeys + n * 8 +
                                     lane % 4 * 2) = pack(p, r, T{});
      }
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
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
      uint32_t p[kHeadTiles][4];
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        load_matrices(p[h], m.weights + (h * 16 + lane % 16) * kWeightStride + step * 16 + lane / 16 * 8);
      }
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        uint32_t b[4];
        load_turned_matrices(b, piece(tile, step * 16 + lane % 16, warp * 8 + d * 2 + lane / 16));
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          multiply(sums[h][2 * d], p[h], b[0], b[1], T{});
          multiply(sums[h][2 * d + 1], p[h], b[2], b[3], T{});
        }
      }
    }
  }

  // Weights of all parts of the keys.
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    weight[i] += shuffle_xor(weight[i], 1);
    weight[i] += shuffle_xor(weight[i], 2);
    if (lane % 4 == 0) m.largest[part][head_tile * 16 + lane / 4 + 8 * i] = weight[i];
  }
  __syncthreads();
  auto weight_of = [&](int head) {
    float sum = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) sum += m.largest[p][head];
    return sum;
  };
  const int64_t place = (int64_t{blockIdx.x} * gridDim.y + blockIdx.y) * a.splits + split;
  if (!alone && part == 0 && lane % 4 == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int h = head_tile * 16 + lane / 4 + 8 * i;
      a.stats[place * kHeads + h] = {largest[i], weight_of(h)};
    }
  }
  float* to = alone ? out : a.partials + place * kHeads * kRank;
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = h * 16 + lane / 4 + 8 * i;
      if (head >= heads) continue;
      const float factor = alone ? 1 / weight_of(head) : 1;
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        *reinterpret_cast<float2*>(to + int64_t{head} * kRank + warp * 64 + d * 8 + lane % 4 * 2) = {
            sums[h][d][2 * i] * factor, sums[h][d][2 * i + 1] * factor};
      }
    }
  }
}

// A load that stays where it stands: the compiler would move it to where it is used.
__device__ inline float4 load_here(const float4* p) {
  float4 v;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p));
  return v;
}

// Adds the splits of one row and head. Grid: (row, head, half of its lanes); a thread has 4 lanes of every
// kMergeGroups-th split.
__global__ void __launch_bounds__(kMergeThreads, 1) merge_kernel(MmaArguments a) {
  constexpr int kAtOnce = kMaxSplits / kMergeGroups, kEach = kMaxSplits / 32;
  __shared__ float4 parts[kMergeGroups][kMergeLanes / 4];
  const MmaArguments::Keys keys = a.keys_of(a.first_row + blockIdx.x);
  const int per_split = a.per_split(keys.count), active = (keys.count + per_split - 1) / per_split;
  const int head = blockIdx.y, tiles = (a.heads + a.tile_heads - 1) / a.tile_heads;
  const int lane = threadIdx.x % 32;
  const int lanes = threadIdx.x % (kMergeLanes / 4), group = threadIdx.x / (kMergeLanes / 4);
  const int64_t place = (int64_t{blockIdx.x} * tiles + head / a.tile_heads) * a.splits;
  const int64_t first = place * a.tile_heads + head % a.tile_heads;
  const int at = blockIdx.z * (kMergeLanes / 4) + lanes;  // in fours
  const float2* stats_of = a.stats + first;
  const float4* from = reinterpret_cast<const float4*>(a.partials + first * kRank) + at;
  let_next_start();
  wait_for_previous();
  if (keys.table == nullptr || active == 1) return;
  float4 values[kAtOnce] = {};
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int split = group + i * kMergeGroups;
    if (split < active) values[i] = load_here(from + int64_t{split} * a.tile_heads * kRank / 4);
  }
  float2 stats[kEach];  // of splits `lane` and 32 behind it
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int split = lane + i * 32;
    stats[i] = split < active ? stats_of[int64_t{split} * a.tile_heads] : float2{kNone, 0};
  }
  float largest = kNone, shares[kEach], weight = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) largest = fmaxf(largest, stats[i].x);
  largest = warp_max(largest);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    shares[i] = power_of_two(stats[i].x - largest);
    weight += shares[i] * stats[i].y;
  }
  weight = warp_sum(weight);
  float4 sum = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    constexpr int kOfRegister = 32 / kMergeGroups;
    const float share = shuffle(shares[i / kOfRegister], group + i % kOfRegister * kMergeGroups);
    sum.x += share * values[i].x;
    sum.y += share * values[i].y;
    sum.z += share * values[i].z;
    sum.w += share * values[i].w;
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
  reinterpret_cast<float4*>(a.out + (int64_t{blockIdx.x} * a.heads + head) * kRank)[at] = {
      sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor};
}

// Heads of a block: few, if all keys of all rows would otherwise have few blocks.
int64_t heads_of(const Stream& stream, const LatentAttention& op, int64_t count) {
  constexpr int64_t kMost = 64, kFew = 16;
  if (!op.selected || !Sequences(*op.batch).one_row_each) return kMost;
  const int64_t tiles = ceil_div(op.selected.dim(1), kKeys);
  const int64_t blocks = count * tiles * ceil_div(op.shape.heads, kFew);
  return blocks <= stream.queue().processors() ? kFew : kMost;
}

// Decodes are split until every processor has a block; rows of prompts are many enough.
int64_t splits_of(const Stream& stream, const LatentAttention& op, int64_t count) {
  if (!Sequences(*op.batch).one_row_each) return 1;
  const int64_t blocks = count * ceil_div(op.shape.heads, heads_of(stream, op, count));
  return std::clamp<int64_t>(stream.queue().processors() / blocks, 1, kMaxSplits);
}

// As many heads of splits as any number of decodes asks for.
int64_t split_heads(const Stream& stream, const LatentAttention& op, int64_t count) {
  return splits_of(stream, op, count) == 1 ? 0 : int64_t{stream.queue().processors()} * 64;
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
      .tile_heads = static_cast<int>(heads_of(stream, op, rows.count)),
      .scale = op.scale};
  const auto count = static_cast<unsigned>(rows.count);
  const dim3 grid(count, static_cast<unsigned>(ceil_div(op.shape.heads, a.tile_heads)),
                  static_cast<unsigned>(splits));
  auto start = [&]<class T, int kHeads>(T, std::integral_constant<int, kHeads>) {
    launch(stream.queue(), latent_kernel<T, kHeads>, grid, dim3(kThreads), sizeof(Memory<T, kHeads>), a);
  };
  auto start_with = [&](auto heads) {
    op.cache.dtype == DType::bf16 ? start(Bf16{}, heads) : start(F16{}, heads);
  };
  a.tile_heads == 16 ? start_with(std::integral_constant<int, 16>{})
                     : start_with(std::integral_constant<int, 64>{});
  if (splits > 1) {
    launch(stream.queue(), merge_kernel,
           dim3(count, static_cast<unsigned>(op.shape.heads), kRank / kMergeLanes), dim3(kMergeThreads), 0,
           a);
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
