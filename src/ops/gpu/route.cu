// Which experts a token takes (RouteExperts), and the gate of a shared expert.
// Bound: latency; a token has a few hundred logits. Grid: a warp per token, its scores in registers; of any
// other number in shared memory, or in scratch if there are very many.
#include "ops/gpu/deferred.h"
#include "ops/gpu/elements.h"
#include "ops/gpu/moe_kernels.h"
#include "ops/gpu/route_token.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int64_t kSharedBytes = 40 << 10;
constexpr int kScaleThreads = 256;

// Of one token: scores and choices of all experts, group scores, the chosen.
__host__ __device__ inline int64_t words_of(int experts, int groups, int k) {
  return 2 * int64_t{experts} + groups + k;
}

// The index of the best value that is not taken, the lowest of equal ones; it is taken then. Of the whole
// warp.
__device__ int take_best(float* values, int n) {
  const int lane = threadIdx.x;
  uint64_t best = 0;
  for (int i = lane; i < n; i += kWarp) {
    best =
        max(best, static_cast<uint64_t>(rank_of(values[i])) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(i)));
  }
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) best = max(best, shuffle_xor(best, mask));
  const int index = static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(best));
  sync_warp();
  if (lane == 0) values[index] = __uint_as_float(kTaken);
  sync_warp();
  return index;
}

// Leaves only the choices of the best groups, which score the sum of their two best.
__device__ void mask_groups(const RouteArguments& a, float* choice, float* group_scores) {
  const int size = a.experts / a.groups;
  for (int g = threadIdx.x; g < a.groups; g += kWarp) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = g * size; i < (g + 1) * size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    group_scores[g] = size > 1 ? first + second : first;
  }
  sync_warp();
  for (int n = 0; n < a.top_groups; ++n) take_best(group_scores, a.groups);
  for (int i = threadIdx.x; i < a.experts; i += kWarp) {
    if (__float_as_uint(group_scores[i / size]) != kTaken) choice[i] = -INFINITY;
  }
  sync_warp();
}

__global__ void __launch_bounds__(kWarp) route_kernel(RouteArguments a) {
  extern __shared__ float memory[];
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x;
  const int64_t token = blockIdx.x;
  float* score = a.scratch == nullptr ? memory : a.scratch + token * words_of(a.experts, a.groups, a.k);
  float* choice = score + a.experts;
  float* group_scores = choice + a.experts;
  int* chosen = reinterpret_cast<int*>(group_scores + a.groups);
  const float* logits = a.logits + token * a.logits_stride;

  float largest = -INFINITY, sum = 0;
  if (a.score == RouterScore::softmax) {
    for (int i = lane; i < a.experts; i += kWarp) largest = fmaxf(largest, logits[i]);
    largest = warp_max(largest);
    for (int i = lane; i < a.experts; i += kWarp) sum += expf(logits[i] - largest);
    sum = warp_sum(sum);
  }
  for (int i = lane; i < a.experts; i += kWarp) {
    float value = logits[i];
    if (a.score == RouterScore::softmax) value = expf(value - largest) / sum;
    if (a.score == RouterScore::sigmoid) value = 1 / (1 + expf(-value));
    score[i] = value;
    choice[i] = value + (a.correction == nullptr ? 0 : a.correction[i]);
  }
  sync_warp();
  if (a.groups > a.top_groups) mask_groups(a, choice, group_scores);
  for (int n = 0; n < a.k; ++n) {
    const int best = take_best(choice, a.experts);
    if (lane == 0) chosen[n] = best;
  }
  sync_warp();

  // Weights of the chosen: a value, its share of their sum if wanted.
  const bool over_chosen = a.score == RouterScore::softmax_chosen;
  float base = -INFINITY;
  if (over_chosen) {
    for (int n = lane; n < a.k; n += kWarp) base = fmaxf(base, score[chosen[n]]);
    base = warp_max(base);
  }
  auto value_of = [&](int n) { return over_chosen ? expf(score[chosen[n]] - base) : score[chosen[n]]; };
  float total = 0;
  for (int n = lane; n < a.k; n += kWarp) total += value_of(n);
  total = warp_sum(total);
  if (!over_chosen && a.score == RouterScore::sigmoid) total += 1e-20f;
  const bool divides = over_chosen || a.renormalize;
  for (int n = lane; n < a.k; n += kWarp) {
    a.ids[token * a.ids_stride + n] = chosen[n];
    a.weights[token * a.weights_stride + n] = (divides ? value_of(n) / total : value_of(n)) * a.scale;
  }
}

template <int kEach>
__global__ void __launch_bounds__(kWarp) route_few_kernel(RouteArguments a) {
  __shared__ float choices[kEach * kWarp];
  let_next_start();
  wait_for_previous();
  route_token<kEach>(a, blockIdx.x, choices);
}

__global__ void __launch_bounds__(kScaleThreads)
    sigmoid_scale_kernel(float* x, int64_t x_stride, const float* logits, int64_t logits_stride, int n) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.y * kScaleThreads + threadIdx.x;
  if (i < n) x[blockIdx.x * x_stride + i] *= 1 / (1 + expf(-logits[blockIdx.x * logits_stride]));
}

}  // namespace

void route_experts(Stream& stream, const RouteExperts& op) {
  const int64_t tokens = op.ids.dim(0), experts = op.logits.dim(1);
  if (tokens == 0) return;
  RouteArguments a = route_arguments(op);
  const dim3 grid(static_cast<unsigned>(tokens));
  if (routes_in_registers(a)) {
    return launch(stream.queue(), experts <= 4 * kWarp ? route_few_kernel<4> : route_few_kernel<kMostEach>,
                  grid, dim3(kWarp), 0, a);
  }
  const int64_t bytes = words_of(a.experts, a.groups, a.k) * static_cast<int64_t>(sizeof(float));
  const bool in_shared = bytes <= kSharedBytes;
  if (!in_shared) a.scratch = static_cast<float*>(stream.queue().scratch(tokens * bytes));
  launch(stream.queue(), route_kernel, grid, dim3(kWarp), in_shared ? static_cast<size_t>(bytes) : 0, a);
}

void sigmoid_scale(Stream& stream, const SigmoidScale& op) {
  if (op.x.dim(0) == 0 || scale_in_product(stream.queue(), op)) return;
  const int64_t n = op.x.dim(1);
  launch(stream.queue(), sigmoid_scale_kernel,
         dim3(static_cast<unsigned>(op.x.dim(0)), static_cast<unsigned>(ceil_div(n, kScaleThreads))),
         dim3(kScaleThreads), 0, op.x.as<float>(), op.x.strides[0], op.logits.as<float>(),
         op.logits.strides[0], static_cast<int>(n));
}

}  // namespace atom::ops::gpu_kernels
