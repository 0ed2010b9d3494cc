// Rotary angles of a step, and norm, rope and cache store of every head.
// Bound: the qkv rows read and written, the cache written. Grid: angles one block per row; store one warp per
// head and row (q, k and v heads).
#include "ops/gpu/cache_elements.h"
#include "ops/gpu/kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kAngleThreads = 64;
constexpr int kWarps = 4;

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
  const auto head_blocks = static_cast<unsigned>(ceil_div(op.heads + 2 * op.kv_heads, kWarps));
  with_cache_element(op.k_cache.dtype, [&](auto element) {
    launch(stream.queue(), store_kernel<decltype(element)>, dim3(tokens, head_blocks), dim3(kWarps * kWarp),
           static_cast<size_t>(kWarps) * op.head_dim * sizeof(float), a);
  });
}

}  // namespace atom::ops::gpu_kernels
