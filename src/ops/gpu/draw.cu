// The token of every row by chance, and chosen tokens into a step: see ops/draw.h.
// Bound: the logits read from the second cache once or twice, and for each a hash and an exponential. Grid:
// one block per row; rows that take the largest logit end at once.
//
// Without top-k nothing is sorted. The race is run among all candidates; the winner is right if the filters
// keep it, and top-p keeps it if the mass before it, of all that are more likely, is below the limit. If not,
// neither it nor anything less likely is kept, and the race is run again among those before it. With top-k,
// at most kMostTopK keys are gathered above a bound that at least k reach, and sorted.
//
// Times are compared in float where they differ by more than its error, else in double, as the reference
// does. Masses are sums of 64-bit integers, so that they do not depend on the order.
#include "ops/draw.h"
#include "ops/gpu/elements.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGathered = 2 * kMostTopK;
constexpr float kNegligible = 60;     // nats, as in the reference
constexpr float kSure = 1e-4f;        // more than the relative error of a time in float
constexpr float kMassUnit = 0x1p40f;  // of a weight of 1; a row has fewer than 2^23 columns

using Key = unsigned long long;

// Rises with the value, and among equals (zeros of either sign are) with a lower column; never 0.
__device__ inline Key key_of(float value, int column) {
  const uint32_t bits = __float_as_uint(value == 0 ? 0.0f : value);
  const uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(rising) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(column));
}
__device__ inline float value_of(Key key) {
  const auto rising = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(rising & 0x80000000u ? rising & 0x7FFFFFFFu : ~rising);
}
__device__ inline int column_of(Key key) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(key));
}

// One row as its block sees it.
struct Row {
  const float* logits;
  int n;
  float top, floor, min_p, inverse_float;
  double inverse_t;
  uint64_t seed;

  __device__ double weight(float x) const {
    return exp((static_cast<double>(x) - static_cast<double>(top)) * inverse_t);
  }
  __device__ float weight_float(float x) const { return __expf((x - top) * inverse_float); }
  // Whether min_p and the floor keep a token with logit x, whose weight is about w.
  __device__ bool keeps(float x, float w) const {
    if (!(x >= floor)) return false;
    if (w > min_p * (1 + kSure)) return true;
    return w >= min_p * (1 - kSure) && weight(x) >= static_cast<double>(min_p);
  }
  __device__ uint64_t noise(int column) const { return counter_bits(seed, static_cast<uint64_t>(column)); }
  __device__ double time(int column) const {
    return -log1p(-uniform_of(noise(column))) / weight(logits[column]);
  }
};

// The block's least (time, column); every thread gets the column. Times are not negative.
__device__ int first_of(double time, int column) {
  __shared__ Key least[kWarps];
  __shared__ int winner;
  auto bits = static_cast<Key>(__double_as_longlong(time));
  Key mine = bits;
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const Key other = shuffle_xor(mine, mask);
    mine = other < mine ? other : mine;
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) least[threadIdx.x / kWarp] = mine;
  if (threadIdx.x == 0) winner = INT32_MAX;
  __syncthreads();
  Key all = least[0];
  for (int w = 1; w < kWarps; ++w) all = least[w] < all ? least[w] : all;
  if (bits == all) atomicMin(&winner, column);
  __syncthreads();
  return winner;
}

__device__ Key sum_of(Key mine) {
  __shared__ Key total;
  mine = warp_sum(mine);
  __syncthreads();
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  if (threadIdx.x % kWarp == 0) atomicAdd(&total, mine);
  __syncthreads();
  return total;
}

__device__ inline Key mass_of(float weight) { return static_cast<Key>(weight * kMassUnit); }

// The first of the race among kept tokens whose key is above `cut`; `fallback` is one of them. Adds what this
// thread saw of their mass to `mass`.
__device__ int race(const Row& row, Key cut, int fallback, Key& mass) {
  float best = INFINITY;
  int column = fallback;
  for (int i = threadIdx.x; i < row.n; i += kThreads) {
    const float x = row.logits[i], w = row.weight_float(x);
    if (!row.keeps(x, w) || key_of(x, i) <= cut) continue;
    mass += mass_of(w);
    const float u = static_cast<float>(row.noise(i) >> 11) * 0x1.0p-53f;
    if (u * (1 - kSure) > best * w) continue;  // the time is at least u / w
    const float time = -log1pf(-u) / w;
    if (time < best * (1 - kSure) || (time < best * (1 + kSure) && row.time(i) < row.time(column))) {
      best = time;
      column = i;
    }
  }
  return first_of(row.time(column), column);
}

// Keys, descending; `count` is a power of two.
__device__ void sort_keys(Key* keys, int count) {
  for (int size = 2; size <= count; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < count / 2; pair += kThreads) {
        const int low = pair / step * 2 * step + pair % step, high = low + step;
        const Key a = keys[low], b = keys[high];
        const bool descending = (low & size) == 0;
        if ((a < b) == descending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

__device__ int count_from(const Row& row, Key bound) {
  Key mine = 0;
  for (int i = threadIdx.x; i < row.n; i += kThreads) mine += key_of(row.logits[i], i) >= bound;
  return static_cast<int>(sum_of(mine));
}

// The k largest keys are the first of `keys` then. 0 < k < n, k <= kMostTopK.
__device__ void gather_largest(const Row& row, int k, Key* keys) {
  __shared__ int gathered;
  Key mine = 0;
  for (int i = threadIdx.x; i < row.n; i += kThreads) {
    const Key key = key_of(row.logits[i], i);
    mine = key > mine ? key : mine;
  }
  keys[threadIdx.x] = mine;
  sort_keys(keys, kThreads);
  Key bound = keys[k - 1];  // k threads have a key that reaches it
  Key above = keys[0] + 1;  // that no key reaches
  __syncthreads();
  while (count_from(row, bound) > kGathered) {  // only if large logits lie in few threads' columns
    for (Key low = bound; above - bound > 1 && bound == low;) {
      const Key middle = bound + (above - bound) / 2;
      (count_from(row, middle) >= k ? bound : above) = middle;
    }
  }
  for (int i = threadIdx.x; i < kGathered; i += kThreads) keys[i] = 0;
  if (threadIdx.x == 0) gathered = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < row.n; i += kThreads) {
    const Key key = key_of(row.logits[i], i);
    if (key >= bound) keys[atomicAdd(&gathered, 1)] = key;
  }
  __syncthreads();
  int count = 1;
  while (count < gathered) count *= 2;
  sort_keys(keys, count);
}

// With top-k: the filters in turn over sorted keys, as the reference applies them.
__device__ int draw_of_largest(const Row& row, const TokenChoice& choice, Key* keys, double* weights) {
  __shared__ int kept;
  const int k = choice.top_k;
  gather_largest(row, k, keys);
  if (threadIdx.x < k) {
    const float x = value_of(keys[threadIdx.x]);
    const double w = row.weight(x);
    weights[threadIdx.x] = x >= row.floor && w >= static_cast<double>(row.min_p) ? w : -1;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int candidates = 0;
    double total = 0;
    while (candidates < k && weights[candidates] >= 0) total += weights[candidates++];
    if (choice.top_p < 1) {
      const double limit = static_cast<double>(choice.top_p) * total;
      double before = weights[0];
      int n = 1;
      while (n < candidates && before < limit) before += weights[n++];
      candidates = n;
    }
    kept = candidates;
  }
  __syncthreads();
  const bool runs = threadIdx.x < kept;
  const int column = runs ? column_of(keys[threadIdx.x]) : INT32_MAX;
  return first_of(runs ? row.time(column) : INFINITY, column);
}

__device__ int draw_of_all(const Row& row, float top_p, int best) {
  Key mass = 0;
  int winner = race(row, 0, best, mass);
  if (top_p >= 1) return winner;
  const double limit = static_cast<double>(top_p) * static_cast<double>(sum_of(mass));
  while (winner != best) {
    const Key cut = key_of(row.logits[winner], winner);
    Key before = 0;
    for (int i = threadIdx.x; i < row.n; i += kThreads) {
      const float x = row.logits[i];
      if (key_of(x, i) > cut) before += mass_of(row.weight_float(x));
    }
    if (static_cast<double>(sum_of(before)) < limit) break;
    winner = race(row, cut, best, mass);
  }
  return winner;
}

__global__ void __launch_bounds__(kThreads)
    draw_kernel(int32_t* out, const float* logits, int64_t stride, int n, const TokenChoice* choices) {
  __shared__ Key keys[kGathered];
  __shared__ double weights[kMostTopK];
  let_next_start();
  wait_for_previous();
  const TokenChoice choice = choices[blockIdx.x];
  const int best = out[blockIdx.x];
  if (choice.temperature < kGreedy || best < 0) return;
  Row row;
  row.logits = logits + blockIdx.x * stride;
  row.n = n;
  row.top = row.logits[best];
  row.floor = __fsub_rn(row.top, __fmul_rn(kNegligible, choice.temperature));
  row.min_p = choice.min_p;
  row.inverse_t = 1.0 / static_cast<double>(choice.temperature);
  row.inverse_float = static_cast<float>(row.inverse_t);
  row.seed = mixed_seed(choice.place);
  const bool all = choice.top_k <= 0 || choice.top_k >= n;
  const int token = all ? draw_of_all(row, choice.top_p, best) : draw_of_largest(row, choice, keys, weights);
  if (threadIdx.x == 0) out[blockIdx.x] = token;
}

__global__ void take_kernel(int32_t* ids, const int32_t* chosen, int n) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && ids[i] < 0) ids[i] = chosen[-1 - ids[i]];
}

}  // namespace

void draw_tokens(Stream& stream, const DrawTokens& op) {
  if (op.out.dim(0) == 0) return;
  launch(stream.queue(), draw_kernel, dim3(static_cast<unsigned>(op.out.dim(0))), dim3(kThreads), 0,
         op.out.as<int32_t>(), op.logits.as<float>(), op.logits.strides[0],
         static_cast<int>(op.logits.dim(1)), op.choices.data());
}

void take_chosen(Stream& stream, const TakeChosen& op) {
  constexpr int kBlock = 256;
  const auto n = static_cast<int64_t>(op.ids.size());
  if (n == 0) return;
  launch(stream.queue(), take_kernel, dim3(static_cast<unsigned>(ceil_div(n, kBlock))), dim3(kBlock), 0,
         op.ids.data(), op.chosen.as<int32_t>(), static_cast<int>(n));
}

}  // namespace atom::ops::gpu_kernels
