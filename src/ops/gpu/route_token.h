// The choice of a token's experts by one warp, in registers, or by one block. Device code only.
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

// The highest rank of a lane, and the first place that has it.
struct Best {
  uint32_t rank;
  int at;
};
template <int kEach>
__device__ inline Best best_of_lane(const uint32_t (&ranks)[kEach]) {
  uint32_t top[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) top[e] = ranks[e];
#pragma unroll
  for (int half = kEach / 2; half > 0; half /= 2) {
#pragma unroll
    for (int e = 0; e < half; ++e) top[e] = max(top[e], top[e + half]);
  }
  uint32_t places = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) places |= ranks[e] == top[0] ? 1u << e : 0;
  return {top[0], static_cast<int>(__ffs(static_cast<int>(places))) - 1};
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

// Writes the n-th choice and its score, which lane n has: as a weight, a value or its share of their sum. Of
// the whole warp.
__device__ inline void write_chosen(const RouteArguments& a, int64_t token, int chosen, float score) {
  const int lane = threadIdx.x % kWarp;
  const bool over_chosen = a.score == RouterScore::softmax_chosen, is_chosen = lane < a.k;
  if (over_chosen) score = expf(score - warp_max(is_chosen ? score : -INFINITY));
  float total = warp_sum(is_chosen ? score : 0);
  if (a.score == RouterScore::sigmoid) total += 1e-20f;
  if (!is_chosen) return;
  a.ids[token * a.ids_stride + lane] = chosen;
  a.weights[token * a.weights_stride + lane] =
      (over_chosen || a.renormalize ? score / total : score) * a.scale;
}

// `logits` may have been written by other blocks of this kernel. `choices`: shared memory for a.experts
// floats. Of the whole warp; kEach * kWarp is at least a.experts.
template <int kEach>
__device__ void route_token(const RouteArguments& a, int64_t token, float* choices) {
  const int lane = threadIdx.x % kWarp;
  const float* logits = a.logits + token * a.logits_stride;
  float scores[kEach], corrections[kEach] = {};
  uint32_t ranks[kEach];
  float largest = -INFINITY, sum = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = lane + e * kWarp;
    scores[e] = i < a.experts ? load_fresh(logits + i) : -INFINITY;
  }
  if (a.correction != nullptr) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int i = lane + e * kWarp;
      if (i < a.experts) corrections[e] = a.correction[i];
    }
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) largest = fmaxf(largest, scores[e]);
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
    const float choice = i < a.experts ? scores[e] + corrections[e] : 0;
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

  // Scores are looked up when it is known which are wanted.
  sync_warp();
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (lane + e * kWarp < a.experts) choices[lane + e * kWarp] = scores[e];
  }
  // Lane n keeps the n-th choice. A lane looks for its best again only after it was taken.
  int chosen = 0;
  Best best = best_of_lane(ranks);
  for (int n = 0; n < a.k; ++n) {
    const int index = best_of_warp(best.rank, lane + best.at * kWarp);
    if (lane == n) chosen = index;
    if (lane != index % kWarp) continue;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (e == best.at) ranks[e] = 0;
    }
    best = best_of_lane(ranks);
  }
  sync_warp();
  const float score = lane < a.k ? choices[chosen] : 0;

  write_chosen(a, token, chosen, score);
}

// The same by a block, for few tokens: its threads share the experts. What may be among the best is at least
// as good as the k-th best of kWarp experts that are the best of as many parts; those few are counted.
template <int kThreads>
__device__ void route_token_by_block(const RouteArguments& a, int64_t token) {
  constexpr int kWarps = kThreads / kWarp, kMost = kMostEach * 32, kEach = kMost / kThreads;
  __shared__ float choices[kMost], partial[2][kWarps], chosen_scores[32];
  __shared__ uint32_t best_of_parts[kWarps][kWarp], least, open_groups;
  __shared__ uint64_t candidates[kMost];
  __shared__ float candidate_scores[kMost];
  __shared__ int candidate_count, chosen[32];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float scores[kEach], corrections[kEach] = {};
  uint32_t ranks[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = threadIdx.x + e * kThreads;
    scores[e] = i < a.experts ? load_fresh(a.logits + token * a.logits_stride + i) : -INFINITY;
    if (a.correction != nullptr && i < a.experts) corrections[e] = a.correction[i];
  }
  if (threadIdx.x == 0) candidate_count = 0;
  if (a.score == RouterScore::softmax) {
    float largest = -INFINITY, sum = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) largest = fmaxf(largest, scores[e]);
    largest = warp_max(largest);
    if (lane == 0) partial[0][warp] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, partial[0][w]);
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      scores[e] = expf(scores[e] - largest);
      if (static_cast<int>(threadIdx.x) + e * kThreads < a.experts) sum += scores[e];
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[1][warp] = sum;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += partial[1][w];
#pragma unroll
    for (int e = 0; e < kEach; ++e) scores[e] /= total;
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = threadIdx.x + e * kThreads;
    if (a.score == RouterScore::sigmoid) scores[e] = 1 / (1 + expf(-scores[e]));
    const float choice = scores[e] + corrections[e];
    ranks[e] = i < a.experts ? rank_of(choice) : 0;
    if (i < a.experts) choices[i] = choice;
  }
  if (a.groups > a.top_groups) {
    __syncthreads();
    if (warp == 0) {
      const uint32_t open = best_groups(a, choices);
      if (lane == 0) open_groups = open;
    }
    __syncthreads();
    const int size = a.experts / a.groups;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int i = threadIdx.x + e * kThreads;
      if (i < a.experts && (open_groups >> (i / size) & 1u) == 0) ranks[e] = rank_of(-INFINITY);
    }
  }

  uint32_t best = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) best = max(best, ranks[e]);
  best_of_parts[warp][lane] = best;
  __syncthreads();
  if (warp == 0) {
#pragma unroll
    for (int w = 1; w < kWarps; ++w) best = max(best, best_of_parts[w][lane]);
    int as_good = 0;
#pragma unroll
    for (int i = 0; i < kWarp; ++i) as_good += shuffle(best, i) >= best;
    best = warp_max_bits(as_good >= a.k ? best : 0);
    if (lane == 0) least = best;
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = threadIdx.x + e * kThreads;
    if (i >= a.experts || ranks[e] < least) continue;
    const int place = atomicAdd(&candidate_count, 1);
    candidates[place] = static_cast<uint64_t>(ranks[e]) << 32 | ~static_cast<uint32_t>(i);
    candidate_scores[place] = scores[e];
  }
  __syncthreads();
  const int count = candidate_count;
  for (int c = threadIdx.x; c < count; c += kThreads) {
    const uint64_t mine = candidates[c];
    int better = 0;
#pragma unroll 8
    for (int i = 0; i < count; ++i) better += candidates[i] > mine;
    if (better >= a.k) continue;
    chosen[better] = static_cast<int>(~static_cast<uint32_t>(mine));
    chosen_scores[better] = candidate_scores[c];
  }
  __syncthreads();
  if (warp > 0) return;
  const bool some = lane < a.k;
  write_chosen(a, token, some ? chosen[lane] : 0, some ? chosen_scores[lane] : 0);
}

}  // namespace atom::ops::gpu_kernels
