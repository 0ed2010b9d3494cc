// Rotary angles of a step, and norm, rope and cache store of every head.
// Bound: the qkv rows read and written, the cache written. Grid: angles one block per row; store one warp per
// head and row (q, k and v heads), or per four heads and row, all of which are loaded at once.
#include "ops/gpu/cache_elements.h"
#include "ops/gpu/kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kAngleThreads = 64;
constexpr int kWarps = 4;
constexpr int kHeads = 4;  // of a warp whose lanes have whole pairs

struct AngleArguments {
  float *cos, *sin;
  int64_t cos_stride, sin_stride;
  const int32_t* positions;
  const float* inv_freq;
  const int32_t* lengths;  // null: the frequencies do not depend on the context
  double theta, factor, original_length;
  float magnitude;
  int pairs;
};

__global__ void angle_kernel(AngleArguments a) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  const auto position = static_cast<float>(a.positions[t]);
  double theta = 0;
  if (a.lengths != nullptr && a.lengths[t] > a.original_length) {
    const double ratio = a.lengths[t] / a.original_length, dim = 2.0 * a.pairs;
    theta = a.theta * pow(a.factor * ratio - (a.factor - 1), dim / (dim - 2));
  }
  for (int i = threadIdx.x; i < a.pairs; i += kAngleThreads) {
    float frequency = a.inv_freq[i];
    if (theta > 0) {  // with the roundings of ops::dynamic_inv_freq
      const float exponent = static_cast<float>(2 * i) / static_cast<float>(2 * a.pairs);
      frequency = 1 / static_cast<float>(
                          pow(static_cast<double>(static_cast<float>(theta)), static_cast<double>(exponent)));
    }
    const double angle = position * frequency;
    a.cos[t * a.cos_stride + i] = static_cast<float>(cos(angle)) * a.magnitude;
    a.sin[t * a.sin_stride + i] = static_cast<float>(sin(angle)) * a.magnitude;
  }
}

struct StoreArguments {
  float* qkv;
  int64_t qkv_stride;
  void *k_cache, *v_cache;
  int64_t k_block_stride, k_head_stride, v_block_stride, v_head_stride;
  const float *q_norm, *k_norm;
  const float *cos, *sin;
  int64_t cos_stride, sin_stride;
  Sequences sequences;
  int heads, kv_heads, head_dim, rotary_dim, block_size;
  bool interleaved;
  float eps, weight_offset;
  float per_k, per_v;  // what keys and values are multiplied by before they are stored
};

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp) store_kernel(StoreArguments a) {
  extern __shared__ float shared[];
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int head = blockIdx.y * kWarps + warp;
  if (head >= a.heads + 2 * a.kv_heads) return;
  const int64_t t = blockIdx.x;
  const bool is_q = head < a.heads, is_v = head >= a.heads + a.kv_heads;
  const AttentionSequence& s = a.sequences.of_row(static_cast<int>(t));
  if (!is_q && s.block_table == nullptr) return;
  float* x = a.qkv + t * a.qkv_stride + int64_t{head} * a.head_dim;
  float* y = shared + warp * a.head_dim;  // the head after norm and rope

  const float* norm = is_v ? nullptr : is_q ? a.q_norm : a.k_norm;
  float scale = 1;
  if (norm != nullptr) {
    float squares = 0;
    for (int d = lane; d < a.head_dim; d += kWarp) squares += x[d] * x[d];
    scale = 1 / sqrtf(warp_sum(squares) / static_cast<float>(a.head_dim) + a.eps);
  }
  for (int d = lane; d < a.head_dim; d += kWarp) {
    y[d] = norm == nullptr ? x[d] : x[d] * scale * (a.weight_offset + norm[d]);
  }
  sync_warp();
  if (!is_v && a.cos != nullptr) {
    const int half = a.rotary_dim / 2;
    for (int i = lane; i < half; i += kWarp) {
      float& first = y[a.interleaved ? 2 * i : i];
      float& second = y[a.interleaved ? 2 * i + 1 : i + half];
      const float cos = a.cos[t * a.cos_stride + i], sin = a.sin[t * a.sin_stride + i];
      const float p = first, q = second;
      first = p * cos - q * sin;
      second = q * cos + p * sin;
    }
    sync_warp();
  }
  if (is_q) {
    for (int d = lane; d < a.head_dim; d += kWarp) x[d] = y[d];
    return;
  }
  const int position = s.context + static_cast<int>(t) - s.first_row;
  const int64_t block = s.block_table[position / a.block_size], slot = position % a.block_size;
  T* cache = is_v
                 ? static_cast<T*>(a.v_cache) + block * a.v_block_stride +
                       (head - a.heads - a.kv_heads) * a.v_head_stride
                 : static_cast<T*>(a.k_cache) + block * a.k_block_stride + (head - a.heads) * a.k_head_stride;
  cache += slot * a.head_dim;
  const float factor = is_v ? a.per_v : a.per_k;
  for (int d = lane; d < a.head_dim; d += kWarp) narrow(y[d] * factor, cache[d]);
}

// Neighbours that are loaded and stored as one.
template <class T, int n>
struct alignas(sizeof(T) * n) Neighbours {
  T at[n];
};

// Sequences::of_row, asked by all lanes of a warp, which look at as many sequences at once.
__device__ const AttentionSequence& sequence_of(const Sequences& sequences, int row, int lane) {
  if (sequences.one_row_each) return sequences.data[row];
  int begin = 0, end = sequences.count;
  while (end - begin > 1) {
    const int step = (end - begin + kWarp - 1) / kWarp, i = begin + lane * step;
    begin += (count_bits(ballot(i < end && sequences.data[i].first_row <= row)) - 1) * step;
    end = min(end, begin + step);
  }
  return sequences.data[begin];
}

// As store_kernel, for rotations of whole heads of 64 * kEach lanes in halves, or none: a lane has kEach
// neighbours in each half, so that both of a pair are in its registers.
template <class T, int kEach>
__global__ void __launch_bounds__(kWarps* kWarp) store_halves_kernel(StoreArguments a) {
  constexpr int kHalf = kWarp * kEach;
  using Floats = Neighbours<float, kEach>;
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_head = (blockIdx.y * kWarps + warp) * kHeads, all_heads = a.heads + 2 * a.kv_heads;
  if (first_head >= all_heads) return;
  const int64_t t = blockIdx.x;
  float* row = a.qkv + t * a.qkv_stride + lane * kEach;
  auto half_of = [&](int head, int half) {
    return reinterpret_cast<Floats*>(row + int64_t{head} * 2 * kHalf + half * kHalf);
  };
  Floats x[kHeads][2], cos, sin;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (first_head + h < all_heads)
      x[h][0] = *half_of(first_head + h, 0), x[h][1] = *half_of(first_head + h, 1);
  }
  if (a.cos != nullptr) {
    cos = *reinterpret_cast<const Floats*>(a.cos + t * a.cos_stride + lane * kEach);
    sin = *reinterpret_cast<const Floats*>(a.sin + t * a.sin_stride + lane * kEach);
  }
  const bool stores = first_head + kHeads > a.heads;
  int64_t block = 0, slot = 0;
  bool kept = false;
  if (stores) {
    const AttentionSequence& s = sequence_of(a.sequences, static_cast<int>(t), lane);
    kept = s.block_table != nullptr;
    const int position = s.context + static_cast<int>(t) - s.first_row;
    if (kept) block = s.block_table[position / a.block_size];
    slot = position % a.block_size;
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int head = first_head + h;
    if (head >= all_heads) break;
    const bool is_q = head < a.heads, is_v = head >= a.heads + a.kv_heads;
    if (!is_q && !kept) continue;
    Floats &first = x[h][0], &second = x[h][1];
    const float* norm = is_v ? nullptr : is_q ? a.q_norm : a.k_norm;
    if (norm != nullptr) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) squares += first.at[i] * first.at[i] + second.at[i] * second.at[i];
      const float scale = 1 / sqrtf(warp_sum(squares) / (2 * kHalf) + a.eps);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        first.at[i] *= scale * (a.weight_offset + norm[lane * kEach + i]);
        second.at[i] *= scale * (a.weight_offset + norm[kHalf + lane * kEach + i]);
      }
    }
    if (!is_v && a.cos != nullptr) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float p = first.at[i], q = second.at[i];
        first.at[i] = p * cos.at[i] - q * sin.at[i];
        second.at[i] = q * cos.at[i] + p * sin.at[i];
      }
    }
    if (is_q) {
      *half_of(head, 0) = first, *half_of(head, 1) = second;
      continue;
    }
    T* cache =
        is_v ? static_cast<T*>(a.v_cache) + block * a.v_block_stride +
                   (head - a.heads - a.kv_heads) * a.v_head_stride
             : static_cast<T*>(a.k_cache) + block * a.k_block_stride + (head - a.heads) * a.k_head_stride;
    cache += slot * 2 * kHalf + lane * kEach;
    const float factor = is_v ? a.per_v : a.per_k;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Neighbours<T, kEach> narrowed;
#pragma unroll
      for (int i = 0; i < kEach; ++i) narrow(x[h][half].at[i] * factor, narrowed.at[i]);
      *reinterpret_cast<Neighbours<T, kEach>*>(cache + half * kHalf) = narrowed;
    }
  }
}

// How many neighbours a lane of store_halves_kernel has; 0: it does not take the op.
int neighbours_for(const QkNormRopeStore& op) {
  const bool rotates = bool(op.rope.cos);
  if (rotates && (op.rotary_dim != op.head_dim || op.rope_interleaved)) return 0;
  for (const int each : {1, 2, 4}) {
    if (op.head_dim != 2 * each * kWarp) continue;
    const auto whole = [&](const Tensor& t) { return !t || (aligned16(t.data) && t.strides[0] % each == 0); };
    return whole(op.qkv) && whole(op.rope.cos) && whole(op.rope.sin) && aligned16(op.k_cache.data) &&
                   aligned16(op.v_cache.data)
               ? each
               : 0;
  }
  return 0;
}

// fn(kernel) with the kernel for so many neighbours.
template <class T, class Fn>
void with_halves_kernel(int each, const Fn& fn) {
  each == 1   ? fn(store_halves_kernel<T, 1>)
  : each == 2 ? fn(store_halves_kernel<T, 2>)
              : fn(store_halves_kernel<T, 4>);
}

}  // namespace

void compute_rope_angles(Stream& stream, const ComputeRopeAngles& op) {
  if (op.positions.empty()) return;
  const AngleArguments a{op.out.cos.as<float>(),
                         op.out.sin.as<float>(),
                         op.out.cos.strides[0],
                         op.out.sin.strides[0],
                         op.positions.data(),
                         op.inv_freq.data(),
                         op.lengths.empty() ? nullptr : op.lengths.data(),
                         op.theta,
                         op.factor,
                         static_cast<double>(op.original_length),
                         op.magnitude,
                         static_cast<int>(op.inv_freq.size())};
  launch(stream.queue(), angle_kernel, dim3(static_cast<unsigned>(op.positions.size())), dim3(kAngleThreads),
         0, a);
}

void qk_norm_rope_store(Stream& stream, const QkNormRopeStore& op) {
  const auto tokens = static_cast<unsigned>(op.qkv.dim(0));
  if (tokens == 0) return;
  const StoreArguments a{op.qkv.as<float>(),
                         op.qkv.strides[0],
                         op.k_cache.data,
                         op.v_cache.data,
                         op.k_cache.strides[0],
                         op.k_cache.strides[1],
                         op.v_cache.strides[0],
                         op.v_cache.strides[1],
                         op.q_norm.as<float>(),
                         op.k_norm.as<float>(),
                         op.rope.cos.as<float>(),
                         op.rope.sin.as<float>(),
                         op.rope.cos.strides[0],
                         op.rope.sin.strides[0],
                         Sequences(*op.batch),
                         op.heads,
                         op.kv_heads,
                         op.head_dim,
                         op.rotary_dim,
                         op.batch->block_size,
                         op.rope_interleaved,
                         op.norm_eps,
                         op.norm_weight_offset,
                         1 / op.scales.k,
                         1 / op.scales.v};
  const int each = neighbours_for(op);
  const auto head_blocks =
      static_cast<unsigned>(ceil_div(op.heads + 2 * op.kv_heads, each > 0 ? kWarps * kHeads : kWarps));
  with_cache_element(op.k_cache.dtype, [&](auto element) {
    if (each > 0) {
      return with_halves_kernel<decltype(element)>(each, [&](auto kernel) {
        launch(stream.queue(), kernel, dim3(tokens, head_blocks), dim3(kWarps * kWarp), 0, a);
      });
    }
    launch(stream.queue(), store_kernel<decltype(element)>, dim3(tokens, head_blocks), dim3(kWarps * kWarp),
           static_cast<size_t>(kWarps) * op.head_dim * sizeof(float), a);
  });
}

}  // namespace atom::ops::gpu_kernels
