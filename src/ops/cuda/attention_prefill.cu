// Paged attention of prompt rows on tensor cores (mma.sync, Ampere and later).
//   out[row, h] = sum over visible keys of softmax(scale * q·k) v, with q and the weights rounded to the
//   cache's type, or to f16 for a cache of E4M3, which is widened to it
// Bound: flops, 4 * head_dim per visible key, row and head. Grid: (row tiles of all sequences, kv heads). A
// block takes 128 query vectors: some rows, with all query heads of one kv head each; 8 warps have 16 vectors
// each and share tiles of 64 keys that are copied ahead, two deep. Sums and softmax stay in registers
// (FlashAttention-2, arXiv 2307.08691).
#include "ops/cuda/cache_mma.h"
#include "ops/cuda/prompt_tiles.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kVectors = kWarps * 16;  // of a block
constexpr int kKeys = 64;              // of a tile

struct PrefillArguments {
  float* out;
  const float* q;
  const void *k, *v;
  const float* sinks;
  int64_t out_stride, q_stride;
  int64_t k_block_stride, k_head_stride, v_block_stride, v_head_stride;
  Sequences sequences;
  int heads, kv_heads, block_size, window;
  float scale, value_scale;
};

template <class Stored, int kDim>
__global__ void __launch_bounds__(kThreads, 1) prefill_kernel(PrefillArguments a) {
  using T = FactorOf<Stored>;
  constexpr bool kWidens = sizeof(Stored) < sizeof(T);
  constexpr int kStride = kDim + 8;  // of a key in shared memory: 8 matrices' rows fall into different banks
  constexpr int kSteps = kDim / 16;
  constexpr bool kWide = kDim > 128;  // queries lie in shared memory, their registers are needed for sums
  extern __shared__ __align__(16) unsigned char memory[];
  T* tiles = reinterpret_cast<T*>(memory);  // [2][k, v][kKeys][kStride]
  let_next_start();
  wait_for_previous();

  const int group = a.heads / a.kv_heads, rows_per_tile = kVectors / group;
  int sequence = 0, tile = 0;
  if (!find_tile(a.sequences, static_cast<int>(blockIdx.x), rows_per_tile, sequence, tile)) return;
  const AttentionSequence s = a.sequences.data[sequence];
  const int kv_head = blockIdx.y;
  const int first_row = tile * rows_per_tile;  // in the sequence
  const int rows = min(rows_per_tile, s.rows - first_row);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // This thread has vectors `warp * 16 + lane / 4` and 8 behind it.
  int position[2];
  const float* q[2];
  float* out[2];
  bool mine[2];
  int head[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int vector = warp * 16 + lane / 4 + 8 * i, row = vector / group;
    mine[i] = row < rows;
    position[i] = s.context + first_row + min(row, rows - 1);
    head[i] = kv_head * group + vector % group;
    const int64_t flat = s.first_row + first_row + row;
    q[i] = mine[i] ? a.q + flat * a.q_stride + int64_t{head[i]} * kDim : nullptr;
    out[i] = mine[i] ? a.out + flat * a.out_stride + int64_t{head[i]} * kDim : nullptr;
  }
  T* q_tile = tiles + 4 * kKeys * kStride + warp * 16 * kStride;  // if wide: this warp's vectors
  uint32_t q_parts[kWide ? 1 : kSteps][4];
  const float q_scale = a.scale * kLog2e;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int i = part % 2, column = step * 16 + part / 2 * 8 + lane % 4 * 2;
      float2 x = {0, 0};
      if (mine[i]) x = *reinterpret_cast<const float2*>(q[i] + column);
      const uint32_t pair = pack(x.x * q_scale, x.y * q_scale, T{});
      if constexpr (kWide) {
        *reinterpret_cast<uint32_t*>(q_tile + (lane / 4 + 8 * i) * kStride + column) = pair;
      } else {
        q_parts[step][part] = pair;
      }
    }
  }

  const int first_position = s.context + first_row, last_position = first_position + rows - 1;
  const int begin = a.window > 0 ? max(0, first_position - a.window + 1) / kKeys * kKeys : 0;
  const int end = last_position + 1;
  const Stored* k_cache = static_cast<const Stored*>(a.k) + kv_head * a.k_head_stride;
  const Stored* v_cache = static_cast<const Stored*>(a.v) + kv_head * a.v_head_stride;
  constexpr int kPiece = 16 / sizeof(Stored), kPieces = kDim / kPiece;  // of 16 bytes in a key
  // Copies of a tile that is widened wait in registers until its buffer is free.
  constexpr int kMine = kKeys * kPieces / kThreads;  // pieces of one thread
  uint4 k_ahead[kWidens ? kMine : 1], v_ahead[kWidens ? kMine : 1];
  auto fetch_tile = [&](int buffer, int first_key) {
    T* k_tile = tiles + buffer * 2 * kKeys * kStride;
    T* v_tile = k_tile + kKeys * kStride;
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
      const int i = threadIdx.x + m * kThreads;
      const int key = i / kPieces, piece = i % kPieces, p = first_key + key;
      // Blocks that lie wholly before the window may be gone.
      const bool valid = p < end && (a.window == 0 || p > first_position - a.window);
      const int64_t block = valid ? s.block_table[p / a.block_size] : 0;
      const int64_t slot = int64_t{valid ? p % a.block_size : 0} * kDim + piece * kPiece;
      const Stored* k_from = k_cache + block * a.k_block_stride + slot;
      const Stored* v_from = v_cache + block * a.v_block_stride + slot;
      if constexpr (kWidens) {
        k_ahead[m] = valid ? *reinterpret_cast<const uint4*>(k_from) : uint4{};
        v_ahead[m] = valid ? *reinterpret_cast<const uint4*>(v_from) : uint4{};
      } else {
        copy_ahead(k_tile + key * kStride + piece * kPiece, k_from, valid);
        copy_ahead(v_tile + key * kStride + piece * kPiece, v_from, valid);
      }
    }
    end_copies();
  };
  auto place_tile = [&](int buffer) {
    if constexpr (kWidens) {
      T* k_tile = tiles + buffer * 2 * kKeys * kStride;
      T* v_tile = k_tile + kKeys * kStride;
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        const int i = threadIdx.x + m * kThreads;
        const int at = i / kPieces * kStride + i % kPieces * kPiece;
        widen_to_halves(k_ahead[m], reinterpret_cast<uint4*>(k_tile + at));
        widen_to_halves(v_ahead[m], reinterpret_cast<uint4*>(v_tile + at));
      }
    }
  };

  float sums[kDim / 8][4] = {};
  float largest[2] = {kNone, kNone}, weight[2] = {0, 0};
  fetch_tile(0, begin);
  place_tile(0);
  int buffer = 0;
  for (int first_key = begin; first_key < end; first_key += kKeys, buffer ^= 1) {
    if (first_key + kKeys < end) {
      fetch_tile(buffer ^ 1, first_key + kKeys);
      await_copies<1>();
    } else {
      await_copies<0>();
    }
    __syncthreads();
    const T* k_tile = tiles + buffer * 2 * kKeys * kStride;
    const T* v_tile = k_tile + kKeys * kStride;

    float scores[kKeys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if constexpr (kWide)
        load_matrices(q_parts[0], q_tile + lane % 16 * kStride + step * 16 + lane / 16 * 8);
      const auto& q_part = q_parts[kWide ? 0 : step];
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        // Matrices: keys 0-7 and 8-15 of 16, lanes 0-7 and 8-15 of 16.
        uint32_t b[4];
        load_matrices(b,
                      k_tile + (n * 16 + lane / 16 * 8 + lane % 8) * kStride + step * 16 + lane / 8 % 2 * 8);
        multiply(scores[2 * n], q_part, b[0], b[1], T{});
        multiply(scores[2 * n + 1], q_part, b[2], b[3], T{});
      }
    }
    const bool whole =
        first_key + kKeys <= first_position + 1 && (a.window == 0 || first_key > last_position - a.window);
    if (!whole) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = first_key + n * 8 + lane % 4 * 2 + e % 2, p = position[e / 2];
          if (key > p || (a.window > 0 && key <= p - a.window)) scores[n][e] = kNone;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = largest[i];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
      top = fmaxf(top, shuffle_xor(top, 1));
      top = fmaxf(top, shuffle_xor(top, 2));
      const float correction = power_of_two(largest[i] - top);
      largest[i] = top;
      weight[i] *= correction;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        sums[d][2 * i] *= correction;
        sums[d][2 * i + 1] *= correction;
      }
      // A row that has seen only masked keys would count them: its largest is still kNone.
      const float base = top == kNone ? 0 : top;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; ++e) {
          scores[n][e] = power_of_two(scores[n][e] - base);
          weight[i] += scores[n][e];
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      const uint32_t p[4] = {pack(scores[2 * step][0], scores[2 * step][1], T{}),
                             pack(scores[2 * step][2], scores[2 * step][3], T{}),
                             pack(scores[2 * step + 1][0], scores[2 * step + 1][1], T{}),
                             pack(scores[2 * step + 1][2], scores[2 * step + 1][3], T{})};
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) {
        uint32_t b[4];
        load_turned_matrices(b, v_tile + (step * 16 + lane % 16) * kStride + d * 16 + lane / 16 * 8);
        multiply(sums[2 * d], p, b[0], b[1], T{});
        multiply(sums[2 * d + 1], p, b[2], b[3], T{});
      }
    }
    __syncthreads();  // before the next copies overwrite this buffer
    if (first_key + kKeys < end) place_tile(buffer ^ 1);
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float total = weight[i];
    total += shuffle_xor(total, 1);
    total += shuffle_xor(total, 2);
    if (!mine[i]) continue;
    if (a.sinks != nullptr) total += power_of_two(a.sinks[head[i]] * kLog2e - largest[i]);
    const float inverse = a.value_scale / total;
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      *reinterpret_cast<float2*>(out[i] + d * 8 + lane % 4 * 2) = {sums[d][2 * i] * inverse,
                                                                   sums[d][2 * i + 1] * inverse};
    }
  }
}

}  // namespace

const char* refuse_prefill(const Stream& stream, const PagedAttention& op) {
  if (stream.queue().capability() < 80) return "needs compute capability 8.0";
  if (op.k_cache.dtype == DType::f32) return "rounds to a cache of 16 or fewer bits";
  if (op.k_cache.dtype == DType::f8e4m3 && stream.queue().capability() < 89)
    return "widens E4M3 with compute capability 8.9";
  if (op.head_dim != 64 && op.head_dim != 128 && op.head_dim != 256) {
    return "for heads of 64, 128 and 256 elements";
  }
  if (op.head_dim == 256 && stream.queue().capability() < 90)
    return "needs 204 KiB of shared memory in a block";
  if (op.heads / op.kv_heads > kVectors) return "too many query heads share one kv head";
  if (Sequences(*op.batch).one_row_each) return "decodes are split along the context";
  if (op.q.strides[0] % 2 != 0 || op.out.strides[0] % 2 != 0) return "rows are not aligned";
  return nullptr;
}

void prefill_attention(Stream& stream, const PagedAttention& op) {
  const PrefillArguments a{.out = op.out.as<float>(),
                           .q = op.q.as<float>(),
                           .k = op.k_cache.data,
                           .v = op.v_cache.data,
                           .sinks = op.sinks.as<float>(),
                           .out_stride = op.out.strides[0],
                           .q_stride = op.q.strides[0],
                           .k_block_stride = op.k_cache.strides[0],
                           .k_head_stride = op.k_cache.strides[1],
                           .v_block_stride = op.v_cache.strides[0],
                           .v_head_stride = op.v_cache.strides[1],
                           .sequences = Sequences(*op.batch),
                           .heads = op.heads,
                           .kv_heads = op.kv_heads,
                           .block_size = op.batch->block_size,
                           .window = op.window,
                           .scale = op.scale * op.scales.k,
                           .value_scale = op.scales.v};
  // Each sequence may end in a tile that is not full.
  const int64_t rows_per_tile = kVectors / (op.heads / op.kv_heads);
  const int64_t blocks = ceil_div(op.out.dim(0), rows_per_tile) + a.sequences.count;
  auto start = [&](auto kernel) {
    const size_t rows = 4 * kKeys + (op.head_dim > 128 ? kVectors : 0);
    const size_t shared = rows * static_cast<size_t>(op.head_dim + 8) * 2;
    launch(stream.queue(), kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(op.kv_heads)),
           dim3(kThreads), shared, a);
  };
  with_narrow_cache(op.k_cache.dtype, [&](auto element) {
    using Stored = decltype(element);
    if (op.head_dim == 64) return start(prefill_kernel<Stored, 64>);
    if (op.head_dim == 256) return start(prefill_kernel<Stored, 256>);
    start(prefill_kernel<Stored, 128>);
  });
}

}  // namespace atom::ops::gpu_kernels
