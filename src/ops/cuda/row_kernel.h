// The kernel of products of one row of x (row_product.h). Device code only; row_*.cu instantiate it.
// Bound: the bytes of the matrices. Grid: a block per processor, which walks over tiles of 8 or 16 rows (of w
// and up). Its warps share the columns of a tile, 128 bytes of each of 8 rows at a step, and bring the bytes
// ahead into rings of their own in shared memory, a thread its own 16 at a time, so that nothing is waited
// for but one's own copies; the rings are filled before the previous kernel has ended. What a thread copied
// is, widened in registers, its fragment of mma.m16n8k16: 8 rows of w are the columns of the product, and all
// 16 rows of the other side are x.
#pragma once
#include <algorithm>
#include <bit>

#include "ops/cuda/e2m1.h"
#include "ops/cuda/mma.h"
#include "ops/cuda/packed_product.h"  // placed
#include "ops/cuda/row_product.h"

namespace atom::ops::gpu_kernels {

template <class T>
struct RowFormat {                       // bf16
  static constexpr int kScaleBytes = 0;  // of a row of w and a step
  static constexpr int kWarps = 16;
  static constexpr int kStages = 6;  // steps that a warp has room for
  // Of products that start long before x is there, if that is all the steps of a block.
  static constexpr int kAllStages = 0;
};
template <>
struct RowFormat<Fp8> {
  static constexpr int kScaleBytes = 4;
  static constexpr int kWarps = 16;
  static constexpr int kStages = 4;
  static constexpr int kAllStages = 8;
};
template <>
struct RowFormat<Fp4> {
  static constexpr int kScaleBytes = 8;
  static constexpr int kWarps = 16;
  static constexpr int kStages = 4;
  static constexpr int kAllStages = 0;
};

// How a launch cuts the work.
struct RowShape {
  int tiles = 0;        // of rows
  int steps = 0;        // of a warp, to cover the columns of a matrix
  int x_bytes = 0;      // of a row of x in shared memory
  int scale_step = 0;   // bytes between the scales of a warp's steps
  int first_scale = 0;  // bytes before the scales of the first column
  int block_shift = 0;  // rows of a block of scales, as a power of two
};

__device__ inline void copy_16(uint32_t to, const void* from, int valid_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid_bytes));
}
template <int kBytes>
__device__ inline void copy_scales(uint32_t to, const void* from, int valid_bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
               "r"(valid_bytes));
}
// 16 bytes of x, which all threads of a quad's number have, with as many elements of w: the tensor core's 16
// rows are eight times x's first and third pairs, then eight times its second and fourth. So sums[0] of the
// first eight rows and sums[1] of the others are what is wanted (`of_row`).
template <class Half>
__device__ inline void multiply_row(float (&sums)[2][4], const uint4& x, uint32_t w0, uint32_t w1,
                                    uint32_t w2, uint32_t w3, Half half) {
  const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
  multiply(sums[0], pairs, w0, w2, half);
  multiply(sums[1], pairs, w1, w3, half);
}
// Row 2 * (lane % 4) + i of w.
__device__ inline float of_row(const float (&sums)[2][4], int i) { return sums[0][i] + sums[1][2 + i]; }

// With `kExperts` for Uses::each, if gated, or Uses::sum, else for Uses::one. `kRing`: steps that a warp has
// room for, of two matrices half as many.
template <class T, bool kGated, int kGroups, bool kExperts, int kRing>
__global__ void __launch_bounds__(32 * RowFormat<T>::kWarps, 1)
    row_kernel(const __grid_constant__ RowProduct a, const __grid_constant__ RowShape shape) {
  constexpr int kWarps = RowFormat<T>::kWarps, kThreads = 32 * kWarps;
  constexpr int kVec = Vec<T>::kElements, kPieces = kVec / 8;  // of a thread's 16 bytes, in eights
  constexpr int kMatrices = kGated ? 2 : 1, kDepths = kWarps / kGroups, kTileRows = 8 * kGroups;
  constexpr int kScaleBytes = RowFormat<T>::kScaleBytes;
  constexpr int kStages = kGated ? (kRing + 1) / 2 : kRing;
  constexpr int kStageBytes = kMatrices * (1024 + 8 * kScaleBytes);
  constexpr int kStepVectors = 8;
  constexpr bool kF16 = std::is_same_v<T, Fp8>;  // x is f16, brought to its range by a power of two
  using Uses = RowProduct::Uses;
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ float largest[kWarps], squares[kWarps];

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4;
  const int group = warp % kGroups, depth = warp / kGroups;
  constexpr Uses kind = !kExperts ? Uses::one : kGated ? Uses::each : Uses::sum;
  const int shared = kExperts ? a.shared() : 0;  // uses of the shared expert, before all others
  const int uses = kind == Uses::one ? 1 : a.routing.k + shared;
  const int segments = kind == Uses::sum ? uses : 1;  // of the columns of a tile
  const int vectors = a.cols / kVec;
  unsigned char* ring = memory + warp * kStages * kStageBytes;
  unsigned char* x_memory = memory + kWarps * kStages * kStageBytes;
  float* sums_memory = reinterpret_cast<float*>(x_memory + segments * shape.x_bytes);
  const uint32_t ring_address = shared_address(ring);

  // A tile, and the use whose tile it is; uses after the last are the end.
  struct Item {
    int tile, use;
    __device__ void go_on(int tiles) {
      for (tile += gridDim.x; tile >= tiles; tile -= tiles) ++use;
    }
  };
  const int last_use = kind == Uses::each ? uses : 1;
  Item first_item{static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x), 0};
  first_item.go_on(shape.tiles);
  // The segment of an item that is copied next, and what is left of the one before.
  Item item = first_item;
  int segment = 0, left = 0, vector = 0;
  const std::byte *data[kMatrices], *scales[kMatrices];
  // The shared expert counts as number 0.
  auto expert_of = [&](int use) {
    return kind == Uses::one || use < shared ? 0 : a.experts.local(a.routing.ids[use - shared]);
  };
  int lane_expert = 0;  // that of use `lane`
  // `each` learns late which experts are wanted. `sum` knows it early: the kernel before it let this one
  // start when the routing had been made.
  int known_uses = kind == Uses::each ? shared : last_use;
  auto begin_segment = [&]() {
    if (item.use >= known_uses) return;
    left = shape.steps;
    const int use = kind == Uses::each ? item.use : segment, expert = shuffle(lane_expert, use);
    const bool is_shared = kExperts && use < shared;
    vector = expert < 0 ? vectors + 4 : depth * kStepVectors + quad;
    const int first_row = item.tile * kTileRows + group * 8;
    // Beyond the end: the last row again, which is not stored.
    const int row = min(first_row + lane / 4, a.rows - 1), scale_row = min(first_row + lane % 8, a.rows - 1);
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const ExpertMatrix& w = m == 0 ? a.w : a.up;
      const RowProduct::Shared& of_all = m == 0 ? a.shared_w : a.shared_up;
      data[m] = (is_shared ? of_all.data : w.first.data + max(expert, 0) * w.data_step) +
                row * w.first.stride + (depth * kStepVectors + quad) * 16;
      if constexpr (kScaleBytes > 0) {
        scales[m] = (is_shared ? of_all.scales : w.first.scales + max(expert, 0) * w.scale_step) +
                    int64_t{(scale_row + w.first.first_row) >> shape.block_shift} * w.first.scale_stride +
                    shape.first_scale + depth * (shape.scale_step / kDepths);
      }
    }
    if (++segment == segments) {
      segment = 0;
      item.go_on(shape.tiles);
    }
  };
  // Of the scales of a step that begins at a vector, what is there.
  auto scale_bytes_from = [&](int first) {
    if (std::is_same_v<T, Fp4>) return max(0, min(kScaleBytes, vectors - first));
    return first < vectors ? kScaleBytes : 0;
  };
  auto copy_step = [&](int stage) {
    if (left == 0) begin_segment();
    if (left > 0) {
      --left;
      const int low = vector < vectors ? 16 : 0, high = vector + 4 < vectors ? 16 : 0;
      const int some = scale_bytes_from(vector - quad);
      const uint32_t to = ring_address + stage * kStageBytes;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        copy_16(to + m * 1024 + lane * 16, data[m], low);
        copy_16(to + m * 1024 + 512 + lane * 16, data[m] + 64, high);
        data[m] += kDepths * kStepVectors * 16;
        if constexpr (kScaleBytes > 0) {
          if (lane < 8)
            copy_scales<kScaleBytes>(to + kMatrices * 1024 + (m * 8 + lane) * kScaleBytes, scales[m], some);
          scales[m] += shape.scale_step;
        }
      }
      vector += kDepths * kStepVectors;
    }
    end_copies();
  };

  if (kind == Uses::sum && lane < uses) lane_expert = expert_of(lane);
  int stage = 0;
  // With the steps from `stage` on. Code that runs once is kept short: the processors fetch it, too.
  auto fill_ring = [&]() {
#pragma unroll 1
    for (int s = 0; s < kStages - 1; ++s) copy_step(stage + s < kStages ? stage + s : stage + s - kStages);
  };
  fill_ring();
  const int eights = a.cols / 8, all_eights = segments * eights;
  auto load_norm = [&](int i, float(&weight)[8]) {
    if (a.norm_weight == nullptr || i >= all_eights) return;
    const float4* from = reinterpret_cast<const float4*>(a.norm_weight) + 2 * i;
    const float4 low = from[0], high = from[1];
    weight[0] = low.x, weight[1] = low.y, weight[2] = low.z, weight[3] = low.w;
    weight[4] = high.x, weight[5] = high.y, weight[6] = high.z, weight[7] = high.w;
  };
  float first_norm[8] = {};  // the weights that this thread needs first
  load_norm(threadIdx.x, first_norm);
  if (kind != Uses::each) let_next_start();
  if (kind != Uses::each || !a.early) wait_for_previous();

  // x, as 16-bit numbers in the order in which threads need them; columns beyond the end are zeros. A thread
  // has all its loads under way at once.
  const bool gates_shared = kExperts && kind == Uses::sum && shared > 0 && a.gate_logit != nullptr;
  const float shared_logit = gates_shared ? *a.gate_logit : 0;
  float shared_weight = 1;
  float largest_here = 0, squares_here = 0;
  auto use_of = [&](int i) { return segments == 1 ? 0 : i / eights; };
  auto load_eight = [&](int i, float(&v)[8]) {
    const float4* from = reinterpret_cast<const float4*>(a.x) + 2 * i;
    const float4 low = from[0], high = from[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  };
  // What nobody wrote, since another rank has the expert, is zero.
  auto look_at = [&](int i, bool written, const float(&weight)[8], float(&v)[8]) {
    if (kind == Uses::sum && !written) {
#pragma unroll
      for (int k = 0; k < 8; ++k) v[k] = 0;
    }
    if (kind == Uses::sum && i < eights) {
#pragma unroll
      for (int k = 0; k < 8; ++k) v[k] *= shared_weight;
    }
    if (a.norm_weight != nullptr) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        squares_here += v[k] * v[k];
        v[k] *= a.norm_offset + weight[k];
      }
    }
#pragma unroll
    for (int k = 0; kF16 && k < 8; ++k) largest_here = fmaxf(largest_here, fabsf(v[k]));
  };
  constexpr int kKept = 4;  // eights of a thread; more are rare, and are read twice
  float kept[kKept][8];
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int i = threadIdx.x + j * kThreads;
    if (i < all_eights) load_eight(i, kept[j]);
  }
  if (gates_shared) shared_weight = 1 / (1 + expf(-shared_logit));
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int i = threadIdx.x + j * kThreads;
    const bool written = kind != Uses::sum || shuffle(lane_expert, min(use_of(i), uses - 1)) >= 0;
    float weight[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) weight[k] = first_norm[k];
    if (j > 0) load_norm(i, weight);
    if (i < all_eights) look_at(i, written, weight, kept[j]);
  }
#pragma unroll 1
  for (int i = threadIdx.x + kKept * kThreads; i < all_eights; i += kThreads) {
    float v[8];
    load_eight(i, v);
    float weight[8];
    load_norm(i, weight);
    look_at(i, kind != Uses::sum || expert_of(use_of(i)) >= 0, weight, v);
  }
  float x_scale = 1, out_scale = 1;
  if constexpr (kF16) {
    largest_here = warp_max(largest_here);
    if (lane == 0) largest[warp] = largest_here;
    __syncthreads();
    float top = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, largest[w]);
    // To [2^13, 2^14); exponents as they are stored.
    const int exponent = max(min(static_cast<int>(__float_as_uint(top) >> 23), 240), 30);
    x_scale = __uint_as_float(static_cast<uint32_t>(127 + 13 + 127 - exponent) << 23);
    out_scale = __uint_as_float(static_cast<uint32_t>(exponent - 13) << 23);
  }
  auto place_of = [&](int use, int eight) {  // of its 16 bytes
    const int vec = eight / kPieces, piece = eight % kPieces;
    return reinterpret_cast<uint4*>(x_memory + use * shape.x_bytes +
                                    ((vec / 4 * kPieces + piece) * 4 + vec % 4) * 16);
  };
  auto store_eight = [&](int i, const float(&v)[8]) {
    const int use = use_of(i);
    if constexpr (kF16) {
      *place_of(use, i - use * eights) = {
          pack(v[0] * x_scale, v[1] * x_scale, F16{}), pack(v[2] * x_scale, v[3] * x_scale, F16{}),
          pack(v[4] * x_scale, v[5] * x_scale, F16{}), pack(v[6] * x_scale, v[7] * x_scale, F16{})};
    } else {
      float p[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) p[placed(k, T{})] = v[k];
      *place_of(use, i - use * eights) = {pack(p[0], p[1], Bf16{}), pack(p[2], p[3], Bf16{}),
                                          pack(p[4], p[5], Bf16{}), pack(p[6], p[7], Bf16{})};
    }
  };
  const float squares_of_all = squares_here;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int i = threadIdx.x + j * kThreads;
    if (i < all_eights) store_eight(i, kept[j]);
  }
#pragma unroll 1
  for (int i = threadIdx.x + kKept * kThreads; i < all_eights; i += kThreads) {
    float v[8];
    load_eight(i, v);
    float weight[8];
    load_norm(i, weight);
    look_at(i, kind != Uses::sum || expert_of(use_of(i)) >= 0, weight, v);
    store_eight(i, v);
  }
  const int padded = shape.x_bytes / 16 - eights;
#pragma unroll 1
  for (int use = 0; use < segments; ++use) {
#pragma unroll 1
    for (int i = threadIdx.x; i < padded; i += kThreads) *place_of(use, eights + i) = {};
  }
  if (a.norm_weight != nullptr) {
    const float sum = warp_sum(squares_of_all);
    if (lane == 0) squares[warp] = sum;
  }
  __syncthreads();
  if (a.norm_weight != nullptr) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += squares[w];
    const float scale = 1 / sqrtf(total / static_cast<float>(a.cols) + a.norm_eps);
    out_scale *= scale;
#pragma unroll 1
    for (int i = blockIdx.x * kThreads + threadIdx.x; a.normed != nullptr && i < a.cols;
         i += gridDim.x * kThreads) {
      a.normed[i] = a.x[i] * scale * (a.norm_offset + a.norm_weight[i]);
    }
  }

  const unsigned char* x_of_warp = x_memory + (depth * kStepVectors * kPieces + quad) * 16;
  const int steps = segments * shape.steps;
  int turn = 0;
  for (Item i = first_item; i.use < last_use; i.go_on(shape.tiles), turn ^= 1) {
    if (kind == Uses::each && i.use >= known_uses) {
      wait_for_previous();
      let_next_start();
      if (lane < uses) lane_expert = expert_of(lane);
      known_uses = last_use;
      fill_ring();
    }
    // What the end of the item adds, fetched ahead: nothing is computed with it before, or the first warp
    // would wait for it here.
    const int row = i.tile * kTileRows + threadIdx.x;
    const int expert = kind == Uses::sum ? 0 : shuffle(lane_expert, i.use);
    const bool stores = threadIdx.x < kTileRows && row < a.rows && expert >= 0;
    const bool adds_biases = kind == Uses::sum && a.bias.first != nullptr;
    float* out = a.out + int64_t{i.use} * a.rows + row;
    float added[2] = {}, weight = 1, gate_logit = 0, before[2] = {};
    constexpr int kBiases = kind == Uses::sum ? 4 : 0;  // more are fetched at the end
    float biases[kBiases + 1] = {}, bias_weights[kBiases + 1] = {};
    int bias_experts[kBiases + 1];
#pragma unroll
    for (int b = 0; b < kBiases; ++b) bias_experts[b] = shuffle(lane_expert, shared + b);
    auto bias_at = [&](int use, int of, float& bias, float& of_use) {
      if (of < 0) return;
      bias = a.bias.of(of, row);
      of_use = a.routing.weights[use - shared];
    };
    if (stores) {
      if (kind != Uses::sum) {
        added[0] = a.bias.of(expert, row);
        if (kGated) added[1] = a.up_bias.of(expert, row);
      }
#pragma unroll
      for (int b = 0; b < kBiases; ++b) {
        if (adds_biases && shared + b < uses)
          bias_at(shared + b, bias_experts[b], biases[b], bias_weights[b]);
      }
      if (kind == Uses::each && i.use >= shared) weight = a.routing.weights[i.use - shared];
      if (kind == Uses::one && a.gate_logit != nullptr) gate_logit = *a.gate_logit;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (a.adds[k] != nullptr) before[k] = a.adds[k][row];
      }
    }
    float sums[kMatrices][2][4] = {};  // two, so that products do not wait for each other
    const unsigned char* x = x_of_warp;
    for (int step = 0; step < steps; ++step) {
      copy_step(stage == 0 ? kStages - 1 : stage - 1);
      await_copies<kStages - 1>();
      const unsigned char* here = ring + stage * kStageBytes;
      const unsigned char* scales_here = here + kMatrices * 1024;
      uint4 w[kMatrices][2];
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          w[m][h] = *reinterpret_cast<const uint4*>(here + m * 1024 + h * 512 + lane * 16);
        }
      }
      if constexpr (kScaleBytes > 0) __syncwarp();  // other lanes copied the scales
      auto x_at = [&](int h, int p) { return *reinterpret_cast<const uint4*>(x + (h * kPieces + p) * 64); };
      if constexpr (std::is_same_v<T, Bf16>) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint4 b = x_at(h, 0);
#pragma unroll
          for (int m = 0; m < kMatrices; ++m) {
            multiply_row(sums[m], b, w[m][h].x, w[m][h].y, w[m][h].z, w[m][h].w, Bf16{});
          }
        }
      } else if constexpr (kF16) {
        float scaled[kMatrices][2][4] = {};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int p = 0; p < kPieces; ++p) {
            const uint4 b = x_at(h, p);
#pragma unroll
            for (int m = 0; m < kMatrices; ++m) {
              const uint32_t w0 = p == 0 ? w[m][h].x : w[m][h].z, w1 = p == 0 ? w[m][h].y : w[m][h].w;
              multiply_row(scaled[m], b, widen_pair(w0), widen_pair(w0 >> 16), widen_pair(w1),
                           widen_pair(w1 >> 16), F16{});
            }
          }
        }
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          const float2 s = *reinterpret_cast<const float2*>(scales_here + (m * 8 + quad * 2) * 4);
          sums[m][0][0] += s.x * of_row(scaled[m], 0);
          sums[m][0][1] += s.y * of_row(scaled[m], 1);
        }
      } else {
        uint32_t scale[kMatrices][2], largest_scale = 0;
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            scale[m][h] = scales_here[(m * 8 + lane / 4) * 8 + h * 4 + quad];
            largest_scale = max(largest_scale, scale[m][h]);
          }
        }
        auto products = [&](auto large) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
              const uint4 b = x_at(h, p);
#pragma unroll
              for (int m = 0; m < kMatrices; ++m) {
                const uint4& v = w[m][h];
                uint32_t wide[4];
                widen_word<decltype(large)::value>(p == 0   ? v.x
                                                   : p == 1 ? v.y
                                                   : p == 2 ? v.z
                                                            : v.w,
                                                   scale[m][h], wide);
                multiply_row(sums[m], b, wide[0], wide[1], wide[2], wide[3], Bf16{});
              }
            }
          }
        };
        if (ballot(largest_scale > 128) != 0) {
          products(std::true_type{});
        } else {
          products(std::false_type{});
        }
      }
      if constexpr (kScaleBytes > 0) __syncwarp();  // before a lane copies scales over those that others read
      x += kDepths * kStepVectors * kPieces * 16;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }

    float* all = sums_memory + turn * kDepths * kMatrices * kTileRows;
    if (lane < 4) {
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        *reinterpret_cast<float2*>(all + (depth * kMatrices + m) * kTileRows + group * 8 + lane * 2) = {
            of_row(sums[m], 0), of_row(sums[m], 1)};
      }
    }
    __syncthreads();
    if (!stores) continue;
#pragma unroll
    for (int b = 0; b < kBiases; ++b) added[0] += bias_weights[b] * biases[b];
#pragma unroll 1
    for (int u = shared + kBiases; adds_biases && u < uses; ++u) {
      float bias = 0, of_use = 0;
      bias_at(u, expert_of(u), bias, of_use);
      added[0] += of_use * bias;
    }
    if (kind == Uses::one && a.gate_logit != nullptr) weight = 1 / (1 + expf(-gate_logit));
    float value[kMatrices] = {};
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
      for (int d = 0; d < kDepths; ++d) value[m] += all[(d * kMatrices + m) * kTileRows + threadIdx.x];
      value[m] = value[m] * out_scale + added[m];
    }
    if constexpr (kGated) value[0] = a.experts.activate(value[0], value[1]);
    *out = value[0] * weight + (before[0] + before[1]);
  }
  // What waits for this kernel waits for those before it as well.
  if (kind == Uses::each && known_uses < last_use) wait_for_previous();
}

template <class T, bool kGated, int kGroups, int kRing>
void start_row_kernel(gpu::Queue& queue, const RowProduct& a) {
  constexpr int kWarps = RowFormat<T>::kWarps;
  constexpr int kDepths = kWarps / kGroups, kTileRows = 8 * kGroups, kMatrices = kGated ? 2 : 1;
  constexpr int kStages = kGated ? (kRing + 1) / 2 : kRing;
  constexpr int kStepCols = 8 * Vec<T>::kElements;
  const StoredMatrix& w = a.w.first;
  RowShape s{.tiles = static_cast<int>(ceil_div(a.rows, kTileRows)),
             .steps = static_cast<int>(ceil_div(a.cols, int64_t{kStepCols} * kDepths))};
  s.x_bytes = s.steps * kDepths * kStepCols * 2;
  if constexpr (std::is_same_v<T, Fp8>) {
    const bool one_scale = w.first_col + a.cols <= w.block_cols;  // of a row
    s.scale_step = one_scale ? 0 : kDepths * 4;
    s.first_scale = one_scale ? 0 : w.first_col / w.block_cols * 4;
  }
  if constexpr (std::is_same_v<T, Fp4>) s.scale_step = kDepths * 8;
  const auto one_block = [&](const StoredMatrix& m) { return m.first_row + a.rows <= m.block_rows; };
  const bool one_block_each = one_block(w) && (!kGated || one_block(a.up.first));
  s.block_shift = one_block_each ? 31 : std::countr_zero(static_cast<unsigned>(w.block_rows));
  const int uses = a.kind == RowProduct::Uses::one ? 1 : a.routing.k + a.shared();
  const int items = s.tiles * (a.kind == RowProduct::Uses::each ? uses : 1);
  const int segments = a.kind == RowProduct::Uses::sum ? uses : 1;
  const size_t shared = size_t{kWarps} * kStages * kMatrices * (1024 + 8 * RowFormat<T>::kScaleBytes) +
                        static_cast<size_t>(segments) * static_cast<size_t>(s.x_bytes) +
                        size_t{2} * kDepths * kMatrices * kTileRows * 4;
  auto start = [&](auto kernel) {
    launch(queue, kernel, dim3(static_cast<unsigned>(std::min(items, queue.processors()))), dim3(32 * kWarps),
           shared, a, s);
  };
  if constexpr (kRing == RowFormat<T>::kStages) {
    if (a.kind != RowProduct::Uses::one) return start(row_kernel<T, kGated, kGroups, true, kRing>);
  }
  start(row_kernel<T, kGated, kGroups, false, kRing>);
}

template <class T, bool kGated, int kGroups>
void start_row_rings(gpu::Queue& queue, const RowProduct& a) {
  constexpr int kAll = RowFormat<T>::kAllStages;
  if constexpr (kAll > 0 && !kGated) {
    // A product without a norm follows attention or the like, whose few blocks leave room for this one's
    // while they work; one with a norm follows a product, and starts when that is about to end.
    constexpr int64_t kStepBytes = int64_t{RowFormat<T>::kWarps} / kGroups * 128;  // of a row
    const int64_t tiles = ceil_div(ceil_div(a.rows, 8 * kGroups), queue.processors()),
                  steps = ceil_div(dtype_bytes(a.type, a.cols), kStepBytes);
    if (a.kind == RowProduct::Uses::one && a.norm_weight == nullptr && tiles * steps <= kAll) {
      return start_row_kernel<T, kGated, kGroups, kAll>(queue, a);
    }
  }
  start_row_kernel<T, kGated, kGroups, RowFormat<T>::kStages>(queue, a);
}

// Starts the kernel of one type; defined in row_*.cu.
using RowStart = void(gpu::Queue&, const RowProduct&);
RowStart start_row_bf16, start_row_fp8, start_row_fp4;

template <class T, bool kGated>
void start_row_tiles(gpu::Queue& queue, const RowProduct& a) {
  // Tiles so that processors get equal shares; each tile costs about as much as some more bytes.
  constexpr int64_t kTileCost = 8 << 10;
  const bool each = a.kind == RowProduct::Uses::each;
  const int64_t uses = a.kind == RowProduct::Uses::one ? 1 : a.routing.k + a.shared();
  const int64_t row_bytes = dtype_bytes(a.type, a.cols) * (kGated ? 2 : 1) * (each ? 1 : uses);
  auto cost = [&](int64_t groups) {
    const int64_t items = ceil_div(a.rows, 8 * groups) * (each ? uses : 1);
    return ceil_div(items, queue.processors()) * (8 * groups * row_bytes + kTileCost);
  };
  const int64_t one = cost(1), two = cost(2), four = cost(4);
  if (std::is_same_v<T, Fp4> && four < two && four < one) return start_row_rings<T, kGated, 4>(queue, a);
  if (two <= one) return start_row_rings<T, kGated, 2>(queue, a);
  start_row_rings<T, kGated, 1>(queue, a);
}

template <class T>
void start_row_any(gpu::Queue& queue, const RowProduct& a) {
  a.gated ? start_row_tiles<T, true>(queue, a) : start_row_tiles<T, false>(queue, a);
}

}  // namespace atom::ops::gpu_kernels
