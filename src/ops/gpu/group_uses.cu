// Uses of experts grouped by expert and cut into tiles, and their sums per token.
// Bound: latency; a few integers per use. Grid: one block for all uses, whose counts are in its shared
// memory. Which place a use gets within its expert is not defined and does not matter: a use's result does
// not depend on it.
#include "ops/gpu/group_uses.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 1024;

// The sum of `value` over the threads before this one.
__device__ int sum_before(int value) {
  __shared__ int of_warp[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int sum = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int below = shuffle_up(sum, step);
    if (lane >= step) sum += below;
  }
  __syncthreads();
  if (lane == kWarp - 1) of_warp[warp] = sum;
  __syncthreads();
  int before = sum - value;
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  return before;
}

// Calls fn(use, expert) for this thread's uses; the ids of several are on the way together.
template <class Fn>
__device__ void for_uses(const Experts& experts, const Routing& routing, int uses, const Fn& fn) {
  constexpr int kTogether = 8;
  for (int first = threadIdx.x; first < uses; first += kTogether * kThreads) {
    int id[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int use = first + i * kThreads;
      if (use < uses) id[i] = routing.id(use);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int use = first + i * kThreads;
      if (use < uses) fn(use, experts.local(id[i]));
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    group_kernel(UseTile* tiles, int tile_bound, int32_t* order, Experts experts, Routing routing, int uses,
                 int tile, int32_t* made, int32_t* slot_of) {
  extern __shared__ int memory[];
  int* count = memory;                 // per expert
  int* next = memory + experts.count;  // where its next use goes
  let_next_start();
  wait_for_previous();
  for (int e = threadIdx.x; e < experts.count; e += kThreads) count[e] = 0;
  __syncthreads();
  for_uses(experts, routing, uses, [&](int, int expert) {
    if (expert >= 0) atomicAdd(&count[expert], 1);
  });
  __syncthreads();
  // Each thread has a run of experts.
  const int per_thread = (experts.count + kThreads - 1) / kThreads;
  const int first = min(static_cast<int>(threadIdx.x) * per_thread, experts.count);
  const int end = min(first + per_thread, experts.count);
  int my_uses = 0, my_tiles = 0;
  for (int e = first; e < end; ++e) {
    my_uses += count[e];
    my_tiles += (count[e] + tile - 1) / tile;
  }
  int begin = sum_before(my_uses), place = sum_before(my_tiles);
  for (int e = first; e < end; ++e) {
    next[e] = begin;
    const int parts = (count[e] + tile - 1) / tile;
    for (int part = 0, done = 0; part < parts; ++part, done += tile)
      tiles[place++] = {e, begin + done, min(tile, count[e] - done), part, parts};
    begin += count[e];
  }
  // The last thread's place is behind all tiles.
  __shared__ int tiles_made;
  if (threadIdx.x == kThreads - 1) {
    tiles_made = made[0] = place;
    made[1] = begin;
  }
  __syncthreads();
  for (int i = tiles_made + threadIdx.x; i < tile_bound; i += kThreads) tiles[i] = {0, 0, 0, 0, 0};
  for_uses(experts, routing, uses, [&](int use, int expert) {
    const int slot = expert >= 0 ? atomicAdd(&next[expert], 1) : -1;
    if (slot >= 0) order[slot] = use;
    if (slot_of != nullptr) slot_of[use] = slot;
  });
}

// A thread sums kEach neighbours.
template <int kEach>
__global__ void sum_uses_kernel(float* out, int64_t out_stride, const float* y, int cols, Experts experts,
                                Routing routing, bool accumulate) {
  let_next_start();
  wait_for_previous();
  const int col = (blockIdx.x * blockDim.x + threadIdx.x) * kEach, token = blockIdx.y;
  if (col >= cols) return;
  struct alignas(kEach * sizeof(float)) Run {
    float value[kEach];
  };
  Run* to = reinterpret_cast<Run*>(out + token * out_stride + col);
  Run sum = accumulate ? *to : Run{};
  const int32_t* ids = routing.ids + token * routing.ids_stride;
  y += int64_t{token} * routing.k * cols + col;
  for (int i = 0; i < routing.k; ++i, y += cols) {
    if (experts.local(ids[i]) < 0) continue;
    const Run run = *reinterpret_cast<const Run*>(y);
#pragma unroll
    for (int j = 0; j < kEach; ++j) sum.value[j] += run.value[j];
  }
  *to = sum;
}

}  // namespace

void group_uses(Stream& stream, UseTile* tiles, int64_t tile_bound, int32_t* order, const Experts& experts,
                const Routing& routing, int64_t uses, int tile, int32_t* made, int32_t* slot_of) {
  launch(stream.queue(), group_kernel, dim3(1), dim3(kThreads), 2 * experts.count * sizeof(int), tiles,
         static_cast<int>(tile_bound), order, experts, routing, static_cast<int>(uses), tile, made, slot_of);
}

void sum_uses(Stream& stream, const Tensor& out, const float* y, const Experts& experts,
              const Routing& routing, bool accumulate) {
  const int cols = static_cast<int>(out.dim(1));
  auto start = [&](auto kernel, int each) {
    constexpr int kThreadsOfSum = 256;
    launch(
        stream.queue(), kernel,
        dim3(static_cast<unsigned>(ceil_div(cols, kThreadsOfSum * each)), static_cast<unsigned>(out.dim(0))),
        dim3(kThreadsOfSum), 0, out.as<float>(), out.strides[0], y, cols, experts, routing, accumulate);
  };
  const bool runs = cols % 4 == 0 && out.strides[0] % 4 == 0 && aligned16(out.data) && aligned16(y);
  if (runs) return start(sum_uses_kernel<4>, 4);
  start(sum_uses_kernel<1>, 1);
}

}  // namespace atom::ops::gpu_kernels
