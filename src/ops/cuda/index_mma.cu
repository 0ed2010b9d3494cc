// Scores of the indexer on tensor cores (mma.sync, Ampere and later), with queries rounded to the type of the
// keys; to f16, which holds all of its values, if that is E4M3.
//   score(u) = scale(u) * sum over heads of weights[h] * max(0, q_h · k_u)
// Bound: the keys' bytes for decodes, flops for prompts. A warp takes 32 keys straight from memory into the
// left operand; queries of all heads lie in shared memory. Lanes of a dot product may go in any order, so
// each thread reads 16 bytes of a key and of a query and takes them as two pairs of two products.
#include "ops/cuda/cache_mma.h"
#include "ops/gpu/index_stream.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kDim = 128;
constexpr int kMaxHeads = 128;

// How a thread has its parts of a key, one of four threads that share it. Keys of bf16 and f16 are factors as
// they are stored: thread i has lanes 32 j + 8 i to 8 further in vector j.
template <class T>
struct KeyParts {
  static constexpr bool kScaled = false;
  static constexpr int kVectors = kDim / 32;  // of 16 bytes
  static constexpr int kStride = kDim + 32;   // of a query: 4 threads of two rows read different banks
  __device__ static int first_lane(int vector, int i) { return vector * 32 + i * 8; }
};

// Of a key of E4M3 it has lanes 64 j + 16 i to 16 further in vector j, which becomes two of f16.
template <>
struct KeyParts<Fp8> {
  static constexpr bool kScaled = true;
  static constexpr int kVectors = kDim / 64;
  static constexpr int kStride = kDim + 8;
  __device__ static int first_lane(int vector, int i) { return vector / 2 * 64 + i * 16 + vector % 2 * 8; }
};

// Scaled keys go through shared memory, where a tile arrives while the one before is multiplied: registers
// for both would leave a processor room for one block. Each thread reads what it has copied itself.
template <class T>
struct MmaScorer {
  using Parts = KeyParts<T>;
  using Factor = FactorOf<T>;
  static constexpr int kVectors = Parts::kVectors, kStride = Parts::kStride;
  static constexpr bool kScaled = Parts::kScaled, kLoadsAhead = kScaled;
  static constexpr int kCopiedBytes = kScaled ? kIndexTile * kDim : 0;
  const Factor* q;       // [heads rounded up to 8][kStride]
  const float* weights;  // as many
  int head_tiles;
  // This thread has parts of keys warp * 32 + lane / 4 of a tile and 8, 16 and 24 behind it.
  uint4 parts[4][kScaled ? 1 : kVectors] = {};

  __device__ static uint4* copied(int vector) {
    extern __shared__ __align__(16) unsigned char memory[];
    return reinterpret_cast<uint4*>(memory) + vector * kIndexThreads + threadIdx.x;
  }

  __device__ void load_keys(const IndexArguments& a, const int32_t* table, int tile, int first, int end) {
    if (first >= end) return;
    const int mine = tile + static_cast<int>(threadIdx.x / 32 * 32 + threadIdx.x % 32 / 4);
    // One after the other, so that all entries of the table are under way together.
    int blocks[4];
    int32_t ids[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) blocks[i] = a.block_of(min(mine + 8 * i, end - 1));
#pragma unroll
    for (int i = 0; i < 4; ++i) ids[i] = table[blocks[i]];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int p = mine + 8 * i;
      if (p < first || p >= end) continue;
      const auto* key = static_cast<const uint4*>(a.cache) + a.slot(ids[i], blocks[i], p) * (kVectors * 4) +
                        threadIdx.x % 4;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        if constexpr (kScaled) {
          asm volatile(
              "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(copied(i * kVectors + j))),
              "l"(key + j * 4)
              : "memory");
        } else {
          parts[i][j] = key[j * 4];
        }
      }
    }
  }

  __device__ void load_query(const IndexArguments& a, int row, unsigned char* memory) {
    head_tiles = (a.heads + 7) / 8;
    Factor* to = reinterpret_cast<Factor*>(memory + kCopiedBytes);
    auto* w = reinterpret_cast<float*>(to + head_tiles * 8 * kStride);
#pragma unroll 4
    for (int i = threadIdx.x; i < head_tiles * 8 * kDim / 4; i += kIndexThreads) {
      const int h = i / (kDim / 4), d = i % (kDim / 4) * 4;
      float4 x = {0, 0, 0, 0};
      if (h < a.heads) x = *reinterpret_cast<const float4*>(a.q + row * a.q_stride + h * kDim + d);
      *reinterpret_cast<uint2*>(to + h * kStride + d) = {pack(x.x, x.y, Factor{}), pack(x.z, x.w, Factor{})};
    }
    for (int h = threadIdx.x; h < head_tiles * 8; h += kIndexThreads) {
      w[h] = h < a.heads ? a.weights[row * a.weights_stride + h] : 0;
    }
    q = to;
    weights = w;
    __syncthreads();
  }

  __device__ void operator()(const IndexArguments& a, const int32_t* table, int first, int end,
                             float* scores) {
    if constexpr (kScaled) {
      asm volatile("cp.async.wait_all;" ::: "memory");
      uint4 wide[4][kDim / 32];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) widen_to_halves(*copied(i * kVectors + j), &wide[i][2 * j]);
      }
      load_keys(a, table, first + kIndexTile, first + kIndexTile, end);
      score(wide, scores);
    } else {
      score(parts, scores);
    }
  }

  __device__ void score(const uint4 (&keys)[4][kDim / 32], float* scores) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sums[4] = {};
    for (int tile = 0; tile < head_tiles; ++tile) {
      float dots[2][4] = {};
      const Factor* query = q + (tile * 8 + lane / 4) * kStride;
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) {
        const uint4 b = *reinterpret_cast<const uint4*>(query + Parts::first_lane(j, lane % 4));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 &upper = keys[2 * m][j], &lower = keys[2 * m + 1][j];
          multiply(dots[m], {upper.x, lower.x, upper.y, lower.y}, b.x, b.y, Factor{});
          multiply(dots[m], {upper.z, lower.z, upper.w, lower.w}, b.z, b.w, Factor{});
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

template <class T>
void start(Stream& stream, const IndexSelect& op) {
  using Scorer = MmaScorer<T>;
  const size_t heads = static_cast<size_t>(ceil_div(op.shape.heads, 8)) * 8;
  start_index_select(stream, op, index_stream_kernel<Scorer>,
                     Scorer::kCopiedBytes + heads * (Scorer::kStride * sizeof(uint16_t) + sizeof(float)),
                     choose_by_cluster);
}

}  // namespace

const char* refuse_index_mma(const Stream& stream, const IndexSelect& op) {
  if (stream.queue().capability() < 80) return "needs compute capability 8.0";
  if (op.cache.dtype == DType::f32) return "rounds to a cache of 16 or 8 bits";
  if (op.shape.head_dim != kDim || op.shape.heads > kMaxHeads) return "for up to 128 heads of 128 lanes";
  if (op.q.strides[0] % 4 != 0 || !aligned16(op.q.data)) return "rows are not aligned";
  return nullptr;
}

void index_select_mma(Stream& stream, const IndexSelect& op) {
  with_narrow_cache(op.cache.dtype, [&](auto element) { start<decltype(element)>(stream, op); });
}

}  // namespace atom::ops::gpu_kernels
