// Paged attention of decodes on tensor cores (mma.sync, Ampere and later), for caches of bf16, f16 and E4M3.
//   out[h] = sum over visible keys of softmax(scale * q[h]·k) v, with q and the weights rounded to the
//   cache's type, or to f16 for E4M3
// Bound: the keys and values of the context, read once for up to 8 heads. Grid: (row, kv head and up to 8 of
// its query heads, split of the context). Each warp of a block walks steps of 16 or 32 keys of its own,
// without waiting for others:
//   scores [keys, heads] = K Qᵀ,   sums [lanes, heads] += Vᵀ P
// Keys and values go from memory to registers in 16 bytes and are fragments of the products as they stand:
// lanes of a head are taken in the order in which threads hold them. Keys of the next step are under way
// while values of this one are used.
#include <algorithm>

#include "ops/cuda/cache_mma.h"
#include "ops/gpu/attention_splits.h"
#include "ops/gpu/kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kHeads = 8;  // of a block

struct DecodeArguments {
  float* out;
  const float* q;
  const void *k, *v;
  const float* sinks;
  float* partials;
  int32_t* counters;  // [row, group of heads]
  int64_t out_stride, q_stride;
  int64_t head_stride;  // of both caches
  Sequences sequences;
  int heads, kv_heads, block_size, window, splits, least_keys;
  int block_slots;  // slots of all kv heads from one block to the next
  float scale, value_scale;
};

// What a thread reads of the keys and values of 16 keys, and the products with them.
template <class T, int kDim>
struct Fragments {
  static constexpr int kKey = 16 / sizeof(T);                       // lanes of a key in one load
  static constexpr int kKeyLoads = kDim / (4 * kKey);               // for each of two keys
  static constexpr int kValue = kDim / 8 < kKey ? kDim / 8 : kKey;  // lanes of a value in one load
  static constexpr int kValueLoads = kDim / (8 * kValue);           // for each of four keys
  static constexpr int kValueWords = kValue * static_cast<int>(sizeof(T)) / 4;
};

template <int kWords>
__device__ inline void load_words(uint32_t (&to)[kWords], const void* from) {
  if constexpr (kWords == 4) {
    const uint4 x = load_once(static_cast<const uint4*>(from));
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  } else {
    static_assert(kWords == 2);
    const uint2 x = *static_cast<const uint2*>(from);
    to[0] = x.x, to[1] = x.y;
  }
}

// The 8 x 8 halves of a warp, turned: from (row lane / 4, columns 2 (lane % 4) and behind) to its transpose.
__device__ inline uint32_t turn(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

template <class T, int kDim, int kTiles>
__global__ void __launch_bounds__(kThreads) decode_kernel(DecodeArguments a) {
  using F = Fragments<T, kDim>;
  using H = FactorOf<T>;
  constexpr bool kWidens = sizeof(T) < sizeof(H);
  constexpr int kStep = 16 * kTiles;  // keys of a warp at a time
  __shared__ float sums_of[kWarps][kHeads][kDim];
  __shared__ float2 stats_of[kWarps][kHeads];
  let_next_start();
  wait_for_previous();

  const int row = blockIdx.x, split = blockIdx.z;
  const int heads_per_kv = a.heads / a.kv_heads, groups_per_kv = (heads_per_kv + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.y / groups_per_kv, first_of_group = blockIdx.y % groups_per_kv * kHeads;
  const int head0 = kv_head * heads_per_kv + first_of_group,
            group = min(kHeads, heads_per_kv - first_of_group);
  float* out = a.out + row * a.out_stride + int64_t{head0} * kDim;
  const AttentionSequence& s = a.sequences.of_row(row);
  if (s.block_table == nullptr) {
    if (split == 0) {
      for (int i = threadIdx.x; i < group * kDim; i += kThreads) out[i] = 0;
    }
    return;
  }
  const int position = s.context + row - s.first_row;
  const int first_key = a.window > 0 ? max(0, position - a.window + 1) : 0;
  const Share share = share_of(first_key, position + 1, a.splits, split, kWarps * kStep, a.least_keys);
  if (split >= share.active) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, major = lane / 4, minor = lane % 4;

  // Head `major`: of every 16 lanes the four that lie where this thread's keys have theirs.
  uint32_t q[kDim / 16][2];
  const float* q_head = a.q + row * a.q_stride + int64_t{head0 + major} * kDim;
  const float q_scale = a.scale * kLog2e;
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i) {
    constexpr int kSteps = F::kKey / 4;  // products with what one load brings
    const int first = (i / kSteps * 4 + minor) * F::kKey + i % kSteps * 4;
    float2 x[2] = {};
    if (major < group) {
      x[0] = *reinterpret_cast<const float2*>(q_head + first);
      x[1] = *reinterpret_cast<const float2*>(q_head + first + 2);
    }
    q[i][0] = pack(x[0].x * q_scale, x[0].y * q_scale, H{});
    q[i][1] = pack(x[1].x * q_scale, x[1].y * q_scale, H{});
  }

  const T* k_cache = static_cast<const T*>(a.k) + kv_head * a.head_stride;
  const T* v_cache = static_cast<const T*>(a.v) + kv_head * a.head_stride;
  // Of key `lane` of the step; keys behind the share stand for its last.
  auto slot_of = [&](int first) {
    const int p = min(first + lane % kStep, share.end - 1);
    return s.block_table[p / a.block_size] * a.block_slots + p % a.block_size;
  };
  uint32_t k[kTiles][2][F::kKeyLoads][4];
  auto load_keys = [&](int slot) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t at =
            int64_t{__shfl_sync(~0u, slot, t * 16 + half * 8 + major)} * kDim + minor * F::kKey;
#pragma unroll
        for (int i = 0; i < F::kKeyLoads; ++i) load_words(k[t][half][i], k_cache + at + i * 4 * F::kKey);
      }
    }
  };

  float sums[kDim / 16][4] = {};
  float largest[2] = {kNone, kNone}, weight[2] = {0, 0};  // of heads 2 minor and 2 minor + 1
  int first = share.begin + warp * kStep;
  int slot = first < share.end ? slot_of(first) : 0;
  if (first < share.end) load_keys(slot);
  for (; first < share.end; first += kWarps * kStep) {
    uint32_t v[kTiles][4][F::kValueLoads][F::kValueWords];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // keys 2 minor, 2 minor + 1, and 8 behind each
        const int key = t * 16 + 2 * minor + i % 2 + i / 2 * 8;
        const int64_t at = int64_t{__shfl_sync(~0u, slot, key)} * kDim + major * F::kValue;
#pragma unroll
        for (int l = 0; l < F::kValueLoads; ++l) load_words(v[t][i][l], v_cache + at + l * 8 * F::kValue);
      }
    }
    const int next = first + kWarps * kStep;
    if (next < share.end) slot = slot_of(next);

    float scores[kTiles][4] = {};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {
        uint32_t key[4];
        if constexpr (kWidens) {
          const uint32_t low = k[t][0][i / 4][i % 4], high = k[t][1][i / 4][i % 4];
          key[0] = widen_pair(low), key[1] = widen_pair(high);
          key[2] = widen_pair(low >> 16), key[3] = widen_pair(high >> 16);
        } else {
          key[0] = k[t][0][i / 2][i % 2 * 2], key[1] = k[t][1][i / 2][i % 2 * 2];
          key[2] = k[t][0][i / 2][i % 2 * 2 + 1], key[3] = k[t][1][i / 2][i % 2 * 2 + 1];
        }
        multiply(scores[t], key, q[i][0], q[i][1], H{});
      }
    }
    if (next < share.end) load_keys(slot);

#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (first + t * 16 + major + e / 2 * 8 >= share.end) scores[t][e] = kNone;
      }
    }
    float correction[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = largest[h];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) top = fmaxf(top, fmaxf(scores[t][h], scores[t][2 + h]));
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, shuffle_xor(top, mask));
      correction[h] = power_of_two(largest[h] - top);
      largest[h] = top;
      weight[h] *= correction[h];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = h; e < 4; e += 2) {
          scores[t][e] = power_of_two(scores[t][e] - top);
          weight[h] += scores[t][e];
        }
      }
    }
    if (__any_sync(~0u, correction[0] != 1 || correction[1] != 1)) {
#pragma unroll
      for (int m = 0; m < kDim / 16; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[m][e] *= correction[e % 2];
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint32_t p0 = turn(pack(scores[t][0], scores[t][1], H{})),
                     p1 = turn(pack(scores[t][2], scores[t][3], H{}));
#pragma unroll
      for (int l = 0; l < F::kValueLoads; ++l) {
#pragma unroll
        for (int w = 0; w < F::kValueWords; ++w) {
          const uint32_t x0 = v[t][0][l][w], x1 = v[t][1][l][w], x2 = v[t][2][l][w], x3 = v[t][3][l][w];
          if constexpr (kWidens) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const unsigned order = half == 0 ? 0x5140 : 0x7362;  // bytes of both keys alternate
              const uint32_t near = __byte_perm(x0, x1, order), far = __byte_perm(x2, x3, order);
              const uint32_t value[4] = {widen_pair(near), widen_pair(near >> 16), widen_pair(far),
                                         widen_pair(far >> 16)};
              multiply(sums[l * (F::kValue / 2) + 2 * w + half], value, p0, p1, H{});
            }
          } else {
            const uint32_t value[4] = {__byte_perm(x0, x1, 0x5410), __byte_perm(x0, x1, 0x7632),
                                       __byte_perm(x2, x3, 0x5410), __byte_perm(x2, x3, 0x7632)};
            multiply(sums[l * (F::kValue / 2) + w], value, p0, p1, H{});
          }
        }
      }
    }
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) weight[h] += shuffle_xor(weight[h], mask);
    if (major == 0) stats_of[warp][2 * minor + h] = {largest[h], weight[h]};
  }
#pragma unroll
  for (int m = 0; m < kDim / 16; ++m) {
    constexpr int kPerLoad = F::kValue / 2;
    const int dim = (m / kPerLoad * 8 + major) * F::kValue + m % kPerLoad * 2;
#pragma unroll
    for (int e = 0; e < 4; ++e) sums_of[warp][2 * minor + e % 2][dim + e / 2] = sums[m][e];
  }
  __syncthreads();

  const bool alone = share.active == 1;
  const int64_t place = int64_t{row} * gridDim.y + blockIdx.y;
  const Partials partials(a.partials, place, a.splits, kHeads, kDim);
  for (int i = threadIdx.x; i < group * kDim; i += kThreads) {
    const int h = i / kDim, d = i % kDim;
    float top = kNone, total = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, stats_of[w][h].x);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = power_of_two(stats_of[w][h].x - top);
      total += factor * stats_of[w][h].y;
      sum += factor * sums_of[w][h][d];
    }
    if (alone) {
      if (a.sinks != nullptr) total += power_of_two(a.sinks[head0 + h] * kLog2e - top);
      out[i] = a.value_scale * sum / total;
      continue;
    }
    partials.sums[int64_t{split} * kHeads * kDim + i] = sum;
    if (d == 0) partials.stats[split * kHeads + h] = {top / kLog2e, total};
  }
  if (alone) return;
  add_splits<kThreads, kHeads>(partials, a.counters + place, share.active, group, kDim,
                               a.sinks == nullptr ? nullptr : a.sinks + head0, a.value_scale, out);
}

int64_t head_groups(const PagedAttention& op) {
  return int64_t{op.kv_heads} * ceil_div(op.heads / op.kv_heads, kHeads);
}

}  // namespace

const char* refuse_decode(const Stream& stream, const PagedAttention& op) {
  const int capability = stream.queue().capability();
  if (capability < 80) return "needs compute capability 8.0";
  if (op.k_cache.dtype == DType::f32) return "rounds to a cache of 16 or fewer bits";
  if (op.k_cache.dtype == DType::f8e4m3 && capability < 89) return "widens E4M3 with compute capability 8.9";
  if (op.head_dim != 64 && op.head_dim != 128 && op.head_dim != 256)
    return "for heads of 64, 128 and 256 elements";
  const Tensor &k = op.k_cache, &v = op.v_cache;
  if (k.strides[0] != v.strides[0] || k.strides[1] != v.strides[1] || k.strides[0] % op.head_dim != 0 ||
      k.dim(0) * (k.strides[0] / op.head_dim) > INT32_MAX)
    return "slots are not numbered alike in both caches, or too many";
  if (!Sequences(*op.batch).one_row_each) return "for steps of decodes";
  if (op.out.dim(0) * head_groups(op) > gpu::Queue::kCounters) return "more rows and heads than counters";
  if (op.q.strides[0] % 2 != 0) return "rows are not aligned";
  return nullptr;
}

void decode_attention(Stream& stream, const PagedAttention& op) {
  const int64_t rows = op.out.dim(0);
  if (rows == 0) return;
  gpu::Queue& queue = stream.queue();
  const int64_t groups = head_groups(op);
  // Contexts are not known here. Blocks that find nothing to do cost little, long rows without splits much.
  const int64_t most = std::clamp<int64_t>(8 * queue.processors() / (rows * groups), 4, kMaxSplits);
  const auto splits = static_cast<int>(most);
  const int64_t partials = rows * groups * Partials::floats(splits, kHeads, op.head_dim);
  const DecodeArguments a{.out = op.out.as<float>(),
                          .q = op.q.as<float>(),
                          .k = op.k_cache.data,
                          .v = op.v_cache.data,
                          .sinks = op.sinks.as<float>(),
                          .partials = static_cast<float*>(queue.scratch(partials * 4)),
                          .counters = queue.counters(),
                          .out_stride = op.out.strides[0],
                          .q_stride = op.q.strides[0],
                          .head_stride = op.k_cache.strides[1],
                          .sequences = Sequences(*op.batch),
                          .heads = op.heads,
                          .kv_heads = op.kv_heads,
                          .block_size = op.batch->block_size,
                          .window = op.window,
                          .splits = splits,
                          .least_keys = rows * groups >= 2 * queue.processors() ? 1024 : 128,
                          .block_slots = static_cast<int>(op.k_cache.strides[0] / op.head_dim),
                          .scale = op.scale * op.scales.k,
                          .value_scale = op.scales.v};
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(groups), static_cast<unsigned>(splits));
  with_narrow_cache(op.k_cache.dtype, [&](auto element) {
    using T = decltype(element);
    auto start = [&](auto kernel) { launch(queue, kernel, grid, dim3(kThreads), 0, a); };
    if (op.head_dim == 64) return start(decode_kernel<T, 64, 2>);
    if (op.head_dim == 256) return start(decode_kernel<T, 256, 1>);
    start(decode_kernel < T, 128, sizeof(T) == 1 ? 2 : 1 >);
  });
}

}  // namespace atom::ops::gpu_kernels
