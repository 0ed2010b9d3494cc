// Scores of the indexer on tensor cores (mma.sync, Ampere and later), with queries rounded to the type of the
// keys.
//   score(u) = sum over heads of weights[h] * max(0, q_h · k_u)
// Bound: the keys' bytes for decodes, flops for prompts. A warp takes 32 keys straight from memory into the
// left operand; queries of all heads lie in shared memory. Lanes of a dot product may go in any order, so
// each thread reads 16 bytes of a key and of a query and takes them as two pairs of two products.
#include "ops/cuda/mma.h"
#include "ops/gpu/index_stream.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kDim = 128;
constexpr int kStride = kDim + 32;  // of a query in shared memory: 4 threads of two rows read different banks
constexpr int kMaxHeads = 128;

template <class T>
struct MmaScorer {
  const T* q;            // [heads rounded up to 8][kStride]
  const float* weights;  // as many
  int head_tiles;
  // This thread has parts of keys warp * 32 + lane / 4 of a tile and 8, 16 and 24 behind it.
  uint4 parts[4][kDim / 32] = {};

  __device__ void load_keys(const IndexArguments& a, const int32_t* table, int tile, int first, int end) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int p = tile + static_cast<int>(threadIdx.x / 32 * 32 + threadIdx.x % 32 / 4) + 8 * i;
      if (p < first || p >= end) continue;
      const T* key = static_cast<const T*>(a.cache) + table[p / a.block_size] * a.block_stride +
                     int64_t{p % a.block_size} * kDim + threadIdx.x % 4 * 8;
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) parts[i][j] = *reinterpret_cast<const uint4*>(key + j * 32);
    }
  }

  __device__ void load_query(const IndexArguments& a, int row, unsigned char* memory) {
    head_tiles = (a.heads + 7) / 8;
    T* to = reinterpret_cast<T*>(memory);
    auto* w = reinterpret_cast<float*>(to + head_tiles * 8 * kStride);
#pragma unroll 4
    for (int i = threadIdx.x; i < head_tiles * 8 * kDim / 4; i += kIndexThreads) {
      const int h = i / (kDim / 4), d = i % (kDim / 4) * 4;
      float4 x = {0, 0, 0, 0};
      if (h < a.heads) x = *reinterpret_cast<const float4*>(a.q + row * a.q_stride + h * kDim + d);
      *reinterpret_cast<uint2*>(to + h * kStride + d) = {pack(x.x, x.y, T{}), pack(x.z, x.w, T{})};
    }
    for (int h = threadIdx.x; h < head_tiles * 8; h += kIndexThreads) {
      w[h] = h < a.heads ? a.weights[row * a.weights_stride + h] : 0;
    }
    q = to;
    weights = w;
    __syncthreads();
  }

  __device__ void operator()(const IndexArguments&, const int32_t*, int, int, float* scores) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sums[4] = {};
    for (int tile = 0; tile < head_tiles; ++tile) {
      float dots[2][4] = {};
      const T* query = q + (tile * 8 + lane / 4) * kStride + lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) {
        const uint4 b = *reinterpret_cast<const uint4*>(query + j * 32);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 &upper = parts[2 * m][j], &lower = parts[2 * m + 1][j];
          multiply(dots[m], {upper.x, lower.x, upper.y, lower.y}, b.x, b.y, T{});
          multiply(dots[m], {upper.z, lower.z, upper.w, lower.w}, b.z, b.w, T{});
        }
      }
      const float2 w = *reinterpret_cast<const float2*>(weights + tile * 8 + lane % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* d = dots[i / 2] + i % 2 * 2;
        sums[i] += w.x * fmaxf(d[0], 0) + w.y * fmaxf(d[1], 0);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] += shuffle_xor(sums[i], 1);
      sums[i] += shuffle_xor(sums[i], 2);
      if (lane % 4 == 0) scores[warp * 32 + lane / 4 + 8 * i] = sums[i];
    }
  }
};

}  // namespace

const char* refuse_index_mma(const Stream& stream, const IndexSelect& op) {
  if (stream.queue().capability() < 80) return "needs compute capability 8.0";
  if (op.cache.dtype == DType::f32) return "rounds to a cache of bf16 or f16";
  if (op.shape.head_dim != kDim || op.shape.heads > kMaxHeads) return "for up to 128 heads of 128 lanes";
  if (op.q.strides[0] % 4 != 0 || !aligned16(op.q.data)) return "rows are not aligned";
  return nullptr;
}

void index_select_mma(Stream& stream, const IndexSelect& op) {
  const size_t heads = static_cast<size_t>(ceil_div(op.shape.heads, 8)) * 8;
  const size_t shared = heads * (kStride * sizeof(Bf16) + sizeof(float));
  start_index_select(stream, op,
                     op.cache.dtype == DType::bf16 ? index_stream_kernel<MmaScorer<Bf16>>
                                                   : index_stream_kernel<MmaScorer<F16>>,
                     shared, choose_by_cluster);
}

}  // namespace atom::ops::gpu_kernels
