// Paged attention, one row at a time: for decodes, and for every shape that no faster kernel takes.
//   out[h] = sum over visible keys of softmax(scale * q[h]·k) v
// Bound: the keys and values of the context, read once per kv head. Grid: (row, kv head and up to kGroup of
// its query heads, split of the context). A block walks its keys in tiles that go through shared memory;
// splits leave their sums in scratch and the last one to finish merges them.
#include <algorithm>

#include "ops/gpu/attention_splits.h"
#include "ops/gpu/cache_elements.h"
#include "ops/gpu/kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr float kNone = -INFINITY;

struct AttentionArguments {
  float* out;
  const float* q;
  const void *k, *v;
  const float* sinks;
  float* partials;    // per row and group
  int32_t* counters;  // [row, group]: splits that have finished
  int64_t out_stride, q_stride;
  int64_t k_block_stride, k_head_stride, v_block_stride, v_head_stride;
  Sequences sequences;
  int heads, kv_heads, head_dim, block_size, window, splits;
  float scale, value_scale;
};

template <class T, int kTile>
__device__ void load_tile(T* to, int stride, const T* cache, int64_t block_stride, const int32_t* table,
                          int block_size, int head_dim, int first, int count, bool in_vectors) {
  constexpr int kVec = Vec<T>::kElements;
  const int per_key = in_vectors ? head_dim / kVec : head_dim;
  for (int i = threadIdx.x; i < count * per_key; i += kThreads) {
    const int key = i / per_key, part = i % per_key, position = first + key;
    const T* from =
        cache + table[position / block_size] * block_stride + int64_t{position % block_size} * head_dim;
    if (in_vectors) {
      copy_ahead(to + key * stride + part * kVec, from + part * kVec);
    } else {
      to[key * stride + part] = from[part];
    }
  }
}

template <class T>
__device__ float dot(const float* q, const T* k, int n, bool in_vectors) {
  float sum = 0;
  if (in_vectors) {
    constexpr int kVec = Vec<T>::kElements;
    for (int i = 0; i < n; i += kVec) {
      float w[kVec];
      widen16(*reinterpret_cast<const uint4*>(k + i), w, T{});
#pragma unroll
      for (int j = 0; j < kVec; j += 4) {
        const float4 p = *reinterpret_cast<const float4*>(q + i + j);
        sum += p.x * w[j] + p.y * w[j + 1] + (p.z * w[j + 2] + p.w * w[j + 3]);
      }
    }
    return sum;
  }
  for (int i = 0; i < n; ++i) sum += q[i] * widen(k[i]);
  return sum;
}

template <class T, int kTile, int kGroup, int kDims>
__global__ void __launch_bounds__(kThreads) attention_kernel(AttentionArguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float scores[kGroup][kTile];
  __shared__ float largest[kGroup], weight[kGroup], correction[kGroup];
  let_next_start();
  wait_for_previous();

  const int row = blockIdx.x, split = blockIdx.z;
  const int heads_per_kv = a.heads / a.kv_heads, groups_per_kv = (heads_per_kv + kGroup - 1) / kGroup;
  const int kv_head = blockIdx.y / groups_per_kv, first_of_group = blockIdx.y % groups_per_kv * kGroup;
  const int head0 = kv_head * heads_per_kv + first_of_group,
            group = min(kGroup, heads_per_kv - first_of_group);
  float* out = a.out + row * a.out_stride + int64_t{head0} * a.head_dim;
  const AttentionSequence& s = a.sequences.of_row(row);
  if (s.block_table == nullptr) {
    if (split == 0) {
      for (int i = threadIdx.x; i < group * a.head_dim; i += kThreads) out[i] = 0;
    }
    return;
  }
  const int position = s.context + row - s.first_row;
  const int first_key = a.window > 0 ? max(0, position - a.window + 1) : 0;
  const Share share = share_of(first_key, position + 1, a.splits, split, kTile, 1);
  if (split >= share.active) return;

  constexpr int kPad = Vec<T>::kElements;
  const bool in_vectors = a.head_dim % Vec<T>::kElements == 0;
  const int stride = a.head_dim + kPad;
  const int q_stride = (a.head_dim + 3) / 4 * 4;
  float* q = reinterpret_cast<float*>(memory);
  T* k_tile = reinterpret_cast<T*>(q + kGroup * q_stride);
  T* v_tile = k_tile + (kTile * stride + kPad - 1) / kPad * kPad;
  for (int i = threadIdx.x; i < group * a.head_dim; i += kThreads) {
    const int g = i / a.head_dim, d = i % a.head_dim;
    q[g * q_stride + d] = a.q[row * a.q_stride + int64_t{head0 + g} * a.head_dim + d] * a.scale;
  }
  if (threadIdx.x < kGroup) {
    largest[threadIdx.x] = kNone;
    weight[threadIdx.x] = 0;
  }
  const T* k_cache = static_cast<const T*>(a.k) + kv_head * a.k_head_stride;
  const T* v_cache = static_cast<const T*>(a.v) + kv_head * a.v_head_stride;
  float sums[kDims][kGroup] = {};
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;

  for (int tile = share.begin; tile < share.end; tile += kTile) {
    const int count = min(kTile, share.end - tile);
    __syncthreads();
    load_tile<T, kTile>(k_tile, stride, k_cache, a.k_block_stride, s.block_table, a.block_size, a.head_dim,
                        tile, count, in_vectors);
    end_copies();
    load_tile<T, kTile>(v_tile, stride, v_cache, a.v_block_stride, s.block_table, a.block_size, a.head_dim,
                        tile, count, in_vectors);
    end_copies();
    await_copies<1>();
    __syncthreads();
    const int key = threadIdx.x % kTile;
    for (int g = threadIdx.x / kTile; g < group; g += kThreads / kTile) {
      scores[g][key] =
          key < count ? dot(q + g * q_stride, k_tile + key * stride, a.head_dim, in_vectors) : kNone;
    }
    __syncthreads();
    for (int g = warp; g < group; g += kWarps) {
      float top = kNone;
      for (int j = lane; j < kTile; j += kWarp) top = fmaxf(top, scores[g][j]);
      const float before = largest[g], now = fmaxf(before, warp_max(top));
      float total = 0;
      for (int j = lane; j < kTile; j += kWarp) {
        const float p = j < count ? expf(scores[g][j] - now) : 0;
        scores[g][j] = p;
        total += p;
      }
      total = warp_sum(total);
      sync_warp();  // everyone has read largest[g]
      if (lane == 0) {
        correction[g] = expf(before - now);
        largest[g] = now;
        weight[g] = weight[g] * correction[g] + total;
      }
    }
    await_copies<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const int d = threadIdx.x + i * kThreads;
      if (d >= a.head_dim) break;
#pragma unroll
      for (int g = 0; g < kGroup; ++g) sums[i][g] *= g < group ? correction[g] : 0;
      for (int j = 0; j < count; ++j) {
        const float v = widen(v_tile[j * stride + d]);
#pragma unroll
        for (int g = 0; g < kGroup; ++g) sums[i][g] += (g < group ? scores[g][j] : 0) * v;
      }
    }
  }
  __syncthreads();

  auto sink_of = [&](int g) { return a.sinks == nullptr ? 0 : expf(a.sinks[head0 + g] - largest[g]); };
  if (share.active == 1) {
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const int d = threadIdx.x + i * kThreads;
      if (d >= a.head_dim) break;
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        if (g < group) out[g * a.head_dim + d] = a.value_scale * sums[i][g] / (weight[g] + sink_of(g));
      }
    }
    return;
  }

  const int64_t place = int64_t{row} * gridDim.y + blockIdx.y;
  const Partials partials(a.partials, place, a.splits, kGroup, a.head_dim);
  float* mine = partials.sums + int64_t{split} * kGroup * a.head_dim;
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    const int d = threadIdx.x + i * kThreads;
    if (d >= a.head_dim) break;
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      if (g < group) mine[g * a.head_dim + d] = sums[i][g];
    }
  }
  if (threadIdx.x < group)
    partials.stats[split * kGroup + threadIdx.x] = {largest[threadIdx.x], weight[threadIdx.x]};
  add_splits<kThreads, kGroup>(partials, a.counters + place, share.active, group, a.head_dim,
                               a.sinks == nullptr ? nullptr : a.sinks + head0, a.value_scale, out);
}

template <class T, int kTile, int kGroup, int kDims>
void start(Stream& stream, AttentionArguments& a, int64_t rows) {
  gpu::Queue& queue = stream.queue();
  const int64_t groups = int64_t{a.kv_heads} * ceil_div(a.heads / a.kv_heads, kGroup);
  // Decodes are split until the device is filled twice; rows of prompts are many enough.
  a.splits = 1;
  if (a.sequences.one_row_each && rows * groups <= gpu::Queue::kCounters) {
    a.splits = static_cast<int>(std::clamp<int64_t>(2 * queue.processors() / (rows * groups), 1, kMaxSplits));
  }
  const int64_t partials = a.splits == 1 ? 0 : rows * groups * Partials::floats(a.splits, kGroup, a.head_dim);
  a.partials = static_cast<float*>(queue.scratch(partials * static_cast<int64_t>(sizeof(float))));
  a.counters = queue.counters();
  constexpr int kPad = Vec<T>::kElements;
  const size_t tile_bytes = ceil_div(int64_t{kTile} * (a.head_dim + kPad), kPad) * 16;
  const size_t shared = kGroup * ceil_div(a.head_dim, 4) * 16 + 2 * tile_bytes;
  launch(queue, attention_kernel<T, kTile, kGroup, kDims>,
         dim3(static_cast<unsigned>(rows), static_cast<unsigned>(groups), static_cast<unsigned>(a.splits)),
         dim3(kThreads), shared, a);
}

template <class T, int kTile, int kDims>
void start_group(Stream& stream, AttentionArguments& a, int64_t rows) {
  const int per_kv = a.heads / a.kv_heads;
  if (per_kv == 1) return start<T, kTile, 1, kDims>(stream, a, rows);
  if (per_kv == 2) return start<T, kTile, 2, kDims>(stream, a, rows);
  if (per_kv <= 4) return start<T, kTile, 4, kDims>(stream, a, rows);
  return start<T, kTile, 8, kDims>(stream, a, rows);
}

}  // namespace

void paged_attention(Stream& stream, const PagedAttention& op) {
  const int64_t rows = op.out.dim(0);
  if (rows == 0) return;
  AttentionArguments a{.out = op.out.as<float>(),
                       .q = op.q.as<float>(),
                       .k = op.k_cache.data,
                       .v = op.v_cache.data,
                       .sinks = op.sinks.as<float>(),
                       .partials = nullptr,
                       .counters = nullptr,
                       .out_stride = op.out.strides[0],
                       .q_stride = op.q.strides[0],
                       .k_block_stride = op.k_cache.strides[0],
                       .k_head_stride = op.k_cache.strides[1],
                       .v_block_stride = op.v_cache.strides[0],
                       .v_head_stride = op.v_cache.strides[1],
                       .sequences = Sequences(*op.batch),
                       .heads = op.heads,
                       .kv_heads = op.kv_heads,
                       .head_dim = op.head_dim,
                       .block_size = op.batch->block_size,
                       .window = op.window,
                       .splits = 1,
                       .scale = op.scale * op.scales.k,
                       .value_scale = op.scales.v};
  with_cache_element(op.k_cache.dtype, [&](auto element) {
    using T = decltype(element);
    // Tiles small enough that both fit in the shared memory of every supported device.
    if (op.head_dim <= kThreads) return start_group < T, sizeof(T) == 4 ? 32 : 64, 1 > (stream, a, rows);
    if (op.head_dim <= 2 * kThreads) return start_group<T, 32, 2>(stream, a, rows);
    return start_group<T, 8, 8>(stream, a, rows);
  });
}

}  // namespace atom::ops::gpu_kernels
