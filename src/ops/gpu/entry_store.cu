// What fills the caches of latent attention and of the indexer: rope on lanes of every query head, in place;
// norm and rope of the row's one entry, which goes to its slot, in E4M3 with a scale of its own. Bound: the
// rows of q read and written. Grid: (row, the entry or 256 pairs of query lanes).
#include "ops/gpu/block_sum.h"
#include "ops/gpu/cache_elements.h"
#include "ops/gpu/latent_kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 256;

struct EntryArguments {
  float* q;
  const float* entry;
  const float *weight, *bias;  // no bias: RMS norm, else layer norm
  void* cache;
  float* scales;  // of a cache of E4M3
  const float *cos, *sin;
  int64_t q_stride, entry_stride, block_stride, cos_stride, sin_stride;
  Sequences sequences;
  int heads, head_dim, q_first;  // lanes of a query head that rotate begin at q_first
  int entry_dim, normed,
      entry_first;  // lanes of the entry: all, those under the norm, where rotated ones begin
  int rope_dim, block_size;
  bool interleaved;
  float eps;
};

struct Angle {
  float cos, sin;
};
__device__ inline Angle angle_of(const EntryArguments& a, int64_t t, int pair) {
  return {a.cos[t * a.cos_stride + pair], a.sin[t * a.sin_stride + pair]};
}
__device__ inline int first_of_pair(const EntryArguments& a, int pair) {
  return a.interleaved ? 2 * pair : pair;
}
__device__ inline int second_of_pair(const EntryArguments& a, int pair) {
  return a.interleaved ? 2 * pair + 1 : pair + a.rope_dim / 2;
}

__device__ inline void rotate_query(const EntryArguments& a, int64_t t, int index) {
  const int half = a.rope_dim / 2, pair = index % half;
  float* lanes = a.q + t * a.q_stride + int64_t{index / half} * a.head_dim + a.q_first;
  float &first = lanes[first_of_pair(a, pair)], &second = lanes[second_of_pair(a, pair)];
  const float p = first, q = second;
  const Angle angle = angle_of(a, t, pair);
  first = p * angle.cos - q * angle.sin;
  second = q * angle.cos + p * angle.sin;
}

// The largest magnitude of all threads' values, as the bits of a float: above those of infinity with a NaN.
__device__ inline uint32_t largest_bits(uint32_t mine) {
  __shared__ uint32_t largest[kThreads / kWarp];
  mine = warp_max_bits(mine);
  if (threadIdx.x % kWarp == 0) largest[threadIdx.x / kWarp] = mine;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kThreads / kWarp; ++i) mine = max(mine, largest[i]);
  return mine;
}

// e8m0_scale() of a positive float with these bits, as a float; NaN if they are not finite.
__device__ inline float power_of_two_scale(uint32_t bits) {
  constexpr uint32_t kInfinity = 0x7F800000u, kMantissa = 0x7FFFFFu, kMantissaOf448 = 0x600000u;
  if (bits >= kInfinity) return NAN;
  bits = max(bits, __float_as_uint(1e-4f));
  return __uint_as_float((bits >> 23) - 8 + ((bits & kMantissa) > kMantissaOf448 ? 1 : 0) << 23);
}

template <class T>
__global__ void __launch_bounds__(kThreads) entry_store_kernel(EntryArguments a) {
  constexpr bool kScaled = std::is_same_v<T, Fp8>;
  extern __shared__ float y[];  // the entry, then the norm's weight and bias
  const int64_t t = blockIdx.x;
  const int half = a.rope_dim / 2;
  if (blockIdx.y > 0) {
    let_next_start();
    wait_for_previous();
    const int index = (blockIdx.y - 1) * kThreads + threadIdx.x;
    if (index < a.heads * half) rotate_query(a, t, index);
    return;
  }
  // Each thread reads the lanes again that it wrote, until the rotation.
  float *weight = y + a.entry_dim, *bias = weight + a.normed;
  for (int d = threadIdx.x; d < a.normed; d += kThreads) {
    weight[d] = a.weight[d];
    bias[d] = a.bias == nullptr ? 0 : a.bias[d];
  }
  const AttentionSequence& s = a.sequences.of_row(static_cast<int>(t));
  const bool stores = s.block_table != nullptr;
  const int position = s.context + static_cast<int>(t) - s.first_row;
  T* cache = static_cast<T*>(a.cache);
  int64_t block = 0;
  if (stores) {
    block = s.block_table[position / a.block_size];
    cache += block * a.block_stride + int64_t{position % a.block_size} * a.entry_dim;
  }
  let_next_start();
  wait_for_previous();
  if (!stores) return;
  const float* x = a.entry + t * a.entry_stride;
  const Angle angle = static_cast<int>(threadIdx.x) < half ? angle_of(a, t, threadIdx.x) : Angle{0, 0};
  float sum = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < a.entry_dim; d += kThreads) {
    const float value = x[d];
    y[d] = value;
    if (d < a.normed) sum += value;
  }
  const float mean = a.bias == nullptr ? 0 : block_sum<kThreads, 0>(sum) / static_cast<float>(a.normed);
  float squares = 0;
  for (int d = threadIdx.x; d < a.normed; d += kThreads) squares += (y[d] - mean) * (y[d] - mean);
  const float scale = 1 / sqrtf(block_sum<kThreads, 1>(squares) / static_cast<float>(a.normed) + a.eps);
  // With scales, all stays in shared memory until the largest is known.
  const auto put = [&](int d, float value) {
    if constexpr (kScaled) {
      y[d] = value;
    } else {
      narrow(value, cache[d]);
    }
  };
  for (int d = threadIdx.x; d < a.entry_dim; d += kThreads) {
    if (d < a.normed) y[d] = (y[d] - mean) * scale * weight[d] + bias[d];
    if (d < a.entry_first || d >= a.entry_first + a.rope_dim) put(d, y[d]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < half; i += kThreads) {
    const int first = a.entry_first + first_of_pair(a, i), second = a.entry_first + second_of_pair(a, i);
    const auto [cos, sin] = i < kThreads ? angle : angle_of(a, t, i);
    const float p = y[first], q = y[second];
    put(first, p * cos - q * sin);
    put(second, q * cos + p * sin);
  }
  if constexpr (kScaled) {
    __syncthreads();
    uint32_t largest = 0;
    for (int d = threadIdx.x; d < a.entry_dim; d += kThreads)
      largest = max(largest, __float_as_uint(y[d]) & 0x7FFFFFFFu);
    const float unit = power_of_two_scale(largest_bits(largest));
    for (int d = threadIdx.x; d < a.entry_dim; d += kThreads) narrow(y[d] / unit, cache[d]);
    if (threadIdx.x == 0) a.scales[block * a.block_size + position % a.block_size] = unit;
  }
}

void start(Stream& stream, DType dtype, int64_t rows, const EntryArguments& a) {
  if (rows == 0) return;
  const int64_t pair_blocks = ceil_div(int64_t{a.heads} * (a.rope_dim / 2), kThreads);
  with_cache_element(dtype, [&](auto element) {
    launch(stream.queue(), entry_store_kernel<decltype(element)>,
           dim3(static_cast<unsigned>(rows), static_cast<unsigned>(1 + pair_blocks)), dim3(kThreads),
           static_cast<size_t>(a.entry_dim + 2 * a.normed) * sizeof(float), a);
  });
}

}  // namespace

void latent_store(Stream& stream, const LatentStore& op) {
  const LatentShape& s = op.shape;
  start(stream, op.cache.dtype, op.q.dim(0),
        {.q = op.q.as<float>(),
         .entry = op.kv.as<float>(),
         .weight = op.norm.as<float>(),
         .bias = nullptr,
         .cache = op.cache.data,
         .scales = nullptr,
         .cos = op.rope.cos.as<float>(),
         .sin = op.rope.sin.as<float>(),
         .q_stride = op.q.strides[0],
         .entry_stride = op.kv.strides[0],
         .block_stride = op.cache.strides[0],
         .cos_stride = op.rope.cos.strides[0],
         .sin_stride = op.rope.sin.strides[0],
         .sequences = Sequences(*op.batch),
         .heads = s.heads,
         .head_dim = s.query_dim(),
         .q_first = s.nope_dim,
         .entry_dim = s.entry_dim(),
         .normed = s.kv_rank,
         .entry_first = s.kv_rank,
         .rope_dim = s.rope_dim,
         .block_size = op.batch->block_size,
         .interleaved = op.rope_interleaved,
         .eps = op.norm_eps});
}

void index_store(Stream& stream, const IndexStore& op) {
  const IndexShape& s = op.shape;
  start(stream, op.cache.dtype, op.q.dim(0),
        {.q = op.q.as<float>(),
         .entry = op.k.as<float>(),
         .weight = op.norm_weight.as<float>(),
         .bias = op.norm_bias.as<float>(),
         .cache = op.cache.data,
         .scales = op.scales.as<float>(),
         .cos = op.rope.cos.as<float>(),
         .sin = op.rope.sin.as<float>(),
         .q_stride = op.q.strides[0],
         .entry_stride = op.k.strides[0],
         .block_stride = op.cache.strides[0],
         .cos_stride = op.rope.cos.strides[0],
         .sin_stride = op.rope.sin.strides[0],
         .sequences = Sequences(*op.batch),
         .heads = s.heads,
         .head_dim = s.head_dim,
         .q_first = 0,
         .entry_dim = s.head_dim,
         .normed = s.head_dim,
         .entry_first = 0,
         .rope_dim = s.rope_dim,
         .block_size = op.batch->block_size,
         .interleaved = op.rope_interleaved,
         .eps = op.norm_eps});
}

}  // namespace atom::ops::gpu_kernels
