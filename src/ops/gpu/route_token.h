// The choice of a token's experts by one warp, in registers. Device code only.
#pragma once
#include "ops/gpu/elements.h"
#include "ops/moe.h"

namespace atom::ops::gpu_kernels {

struct RouteArguments {
  int32_t* ids;
  float* weights;
  const float* logits;
  const float* correction;  // null or [experts]
  float* scratch;           // of the kernel for any shape: null if shared memory is enough
  int64_t ids_stride, weights_stride, logits_stride;
  int experts, k, groups, top_groups;
  RouterScore score;
  bool renormalize;
  float scale;
};

inline RouteArguments route_arguments(const RouteExperts& op) {
  return {.ids = op.ids.as<int32_t>(),
          .weights = op.weights.as<float>(),
          .logits = op.logits.as<float>(),
          .correction = op.correction.as<float>(),
          .scratch = nullptr,
          .ids_stride = op.ids.strides[0],
          .weights_stride = op.weights.strides[0],
          .logits_stride = op.logits.strides[0],
          .experts = static_cast<int>(op.logits.dim(1)),
          .k = static_cast<int>(op.ids.dim(1)),
          .groups = op.groups,
          .top_groups = op.top_groups,
          .score = op.score,
          .renormalize = op.renormalize,
          .scale = op.scale};
}

// A lane has up to kMostEach experts, one of the chosen and one group.
constexpr int kMostEach = 16;
inline bool routes_in_registers(const RouteArguments& a) {
  return a.experts <= kMostEach * 32 && a.k <= 32 && a.groups <= 32;
}

constexpr uint32_t kTaken = 0xFFFFFFFFu;  // the bits of a value that cannot be chosen again

// Rises with the value; 0 for what is taken, below all others for what is not a number.
__device__ inline uint32_t rank_of(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (bits == kTaken) return 0;
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 1;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The index of a warp's highest rank, the lowest of equal ones.
__device__ inline int best_of_warp(uint32_t rank, int index) {
  const uint32_t top = warp_max_bits(rank);
  return static_cast<int>(~warp_max_bits(rank == top ? ~static_cast<uint32_t>(index) : 0));
}

// Of the groups, whose choices lie in `choices`, bit g of the best ones. A group scores its two best.
__device__ inline uint32_t best_groups(const RouteArguments& a, const float* choices) {
  const int lane = threadIdx.x % kWarp, size = a.experts / a.groups;
  uint32_t rank = 0;
  if (lane < a.groups) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = lane * size; i < (lane + 1) * size; ++i) {
      const float value = choices[i];
      if (value > first) {
        second = first;
        first = value;
      } else if (value > second) {
        second = value;
      }
    }
    rank = rank_of(size > 1 ? first + second : first);
  }
  uint32_t best = 0;
  for (int n = 0; n < a.top_groups; ++n) {
    const int group = best_of_warp(rank, lane);
    best |= 1u << group;
    if (lane == group) rank = 0;
  }
  return best;
}

// `logits` may have been written by other blocks of this kernel. `choices`: shared memory for a.experts
// floats, if there are groups to choose. Of the whole warp; kEach * kWarp is at least a.experts.
template <int kEach>
__device__ void route_token(const RouteArguments& a, int64_t token, float* choices) {
  const int lane = threadIdx.x % kWarp;
  const float* logits = a.logits + token * a.logits_stride;
  float scores[kEach];
  uint32_t ranks[kEach];
  float largest = -INFINITY, sum = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = lane + e * kWarp;
    scores[e] = i < a.experts ? load_fresh(logits + i) : -INFINITY;
    largest = fmaxf(largest, scores[e]);
  }
  if (a.score == RouterScore::softmax) {
    largest = warp_max(largest);
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      scores[e] = expf(scores[e] - largest);
      if (lane + e * kWarp < a.experts) sum += scores[e];
    }
    sum = warp_sum(sum);
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = lane + e * kWarp;
    if (a.score == RouterScore::softmax) scores[e] /= sum;
    if (a.score == RouterScore::sigmoid) scores[e] = 1 / (1 + expf(-scores[e]));
    const float choice = i < a.experts ? scores[e] + (a.correction == nullptr ? 0 : a.correction[i]) : 0;
    ranks[e] = i < a.experts ? rank_of(choice) : 0;
    if (a.groups > a.top_groups && i < a.experts) choices[i] = choice;
  }
  if (a.groups > a.top_groups) {
    sync_warp();
    const uint32_t open = best_groups(a, choices);
    const int size = a.experts / a.groups;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int i = lane + e * kWarp;
      if (i < a.experts && (open >> (i / size) & 1u) == 0) ranks[e] = rank_of(-INFINITY);
    }
  }

  // Lane n keeps the n-th choice.
  int chosen = 0;
  float score = 0;
  for (int n = 0; n < a.k; ++n) {
    uint32_t rank = 0;
    int index = 0;
    float value = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (ranks[e] > rank) rank = ranks[e], index = lane + e * kWarp, value = scores[e];
    }
    const int best = best_of_warp(rank, index);
    value = shuffle(value, best % kWarp);
    if (lane == n) chosen = best, score = value;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (lane + e * kWarp == best) ranks[e] = 0;
    }
  }

  // Weights of the chosen: a value, its share of their sum if wanted.
  const bool over_chosen = a.score == RouterScore::softmax_chosen, is_chosen = lane < a.k;
  if (over_chosen) score = expf(score - warp_max(is_chosen ? score : -INFINITY));
  float total = warp_sum(is_chosen ? score : 0);
  if (a.score == RouterScore::sigmoid) total += 1e-20f;
  if (!is_chosen) return;
  a.ids[token * a.ids_stride + lane] = chosen;
  a.weights[token * a.weights_stride + lane] =
      (over_chosen || a.renormalize ? score / total : score) * a.scale;
}

}  // namespace atom::ops::gpu_kernels
