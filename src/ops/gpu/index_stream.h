// Selection of the k best positions of a row without keeping all scores: blocks stream through their share of
// the keys and keep candidates, a second kernel chooses among the candidates of all shares. Device code, and
// what starts it; the kernels that compute scores are given as a `Scorer`.
//
// Candidates stay in ascending order of position, so ties go to the lower position by counting.
#pragma once
#include <algorithm>

#include "ops/gpu/elements.h"
#include "ops/gpu/latent_kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {

constexpr int kIndexThreads = 256;
constexpr int kIndexTile = kIndexThreads;  // keys scored at a time
constexpr int kIndexMaxSplits = 64;

struct IndexArguments {
  int32_t* out;
  const float *q, *weights;
  const void* cache;
  const float* scales;  // null, or one for each key
  int64_t out_stride, q_stride, weights_stride;
  Sequences sequences;
  int first_row, heads, dim, block_size, k, splits, capacity;
  int block_shift;  // block_size as a power of two; -1 if it is none
  // Per row and split: candidates, and how many.
  uint32_t* scores;
  int32_t* positions;
  int32_t* counts;

#if defined(__CUDACC__) || defined(__HIPCC__)
  // Where the key of a position lies: its number among all in the cache, once table[block] is known.
  __device__ int block_of(int position) const {
    return block_shift >= 0 ? position >> block_shift : position / block_size;
  }
  __device__ int64_t slot(int32_t id, int block, int position) const {
    return int64_t{id} * block_size + (position - block * block_size);
  }
  __device__ int64_t slot(const int32_t* table, int position) const {
    const int block = block_of(position);
    return slot(table[block], block, position);
  }
#endif
};

// Starts the choice among the candidates of `rows` rows.
using StartChoice = void(gpu::Queue& queue, const IndexArguments& a, unsigned rows);
void choose_by_block(gpu::Queue& queue, const IndexArguments& a, unsigned rows);
void choose_by_cluster(gpu::Queue& queue, const IndexArguments& a, unsigned rows);  // on NVIDIA's alone

// Runs `kernel`, an index_stream_kernel, and the choice among its candidates over runs of rows that bound the
// scratch.
void start_index_select(Stream& stream, const IndexSelect& op, void (*kernel)(IndexArguments), size_t shared,
                        StartChoice* choose);

#if defined(__CUDACC__) || defined(__HIPCC__)

// The number of the lowest bit that is set; one is.
__device__ inline int first_bit(LaneMask lanes) { return count_bits((lanes & (~lanes + 1)) - 1); }

// Floats as integers of the same order.
__device__ inline uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // one zero
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The k-th largest of some scores, and how many that equal it are among the k.
struct Cut {
  uint32_t score;
  int ties;
};

// for_each(fn) calls fn(score) for this thread's share of the scores; all threads of the block call find_cut.
// There are at least k scores.
template <class ForEach>
__device__ Cut find_cut(int k, const ForEach& for_each) {
  __shared__ int histogram[256];
  __shared__ int chosen_digit, left_over;
  uint32_t prefix = 0, mask = 0;
  int left = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) histogram[i] = 0;
    __syncthreads();
    for_each([&](uint32_t score) {
      if ((score & mask) == prefix) atomicAdd(&histogram[score >> shift & 255], 1);
    });
    __syncthreads();
    if (threadIdx.x < kWarp) {  // lane i has the digits from the i-th largest group of 256 / kWarp
      constexpr int kEach = 256 / kWarp;
      const int lane = threadIdx.x, top = 255 - lane * kEach;
      int mine = 0;
      for (int i = 0; i < kEach; ++i) mine += histogram[top - i];
      int before = 0;  // of larger digits
      for (int i = 0; i < kWarp; ++i) {
        const int other = shuffle(mine, i);
        if (i < lane) before += other;
      }
      if (before < left && before + mine >= left) {
        int digit = top;
        while (before + histogram[digit] < left) before += histogram[digit--];
        chosen_digit = digit;
        left_over = left - before;
      }
    }
    __syncthreads();
    prefix |= static_cast<uint32_t>(chosen_digit) << shift;
    mask |= 255u << shift;
    left = left_over;
    __syncthreads();
  }
  return {prefix, left};
}

// Sums over the threads before this one, and over all, of two small counts.
struct Places {
  int first_before, second_before, first_total, second_total;
};
template <int kThreads>
__device__ Places count_before(bool first, bool second) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ int firsts[kWarps], seconds[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const LaneMask below = (LaneMask{1} << lane) - 1;
  const LaneMask first_lanes = ballot(first), second_lanes = ballot(second);
  __syncthreads();  // the counts of a call before are read
  if (lane == 0) {
    firsts[warp] = count_bits(first_lanes);
    seconds[warp] = count_bits(second_lanes);
  }
  __syncthreads();
  Places p{count_bits(first_lanes & below), count_bits(second_lanes & below), 0, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) {
      p.first_before += firsts[w];
      p.second_before += seconds[w];
    }
    p.first_total += firsts[w];
    p.second_total += seconds[w];
  }
  return p;
}

// Keys of a split of a row with `keys` keys.
__device__ inline int keys_per_split(int keys, int splits) {
  return ((keys + splits - 1) / splits + kIndexTile - 1) / kIndexTile * kIndexTile;
}

// Scorer, of all threads:
//   load_keys(arguments, table, tile, first, end): those of the positions [first, end) that lie in the tile
//     of kIndexTile which begins at `tile`
//   load_query(arguments, row, dynamic shared memory)
//   operator(): fills scores, in shared memory, for the tile whose keys were loaded
//   kScaled: keys have scales; operator() leaves them out
//   kLoadsAhead: operator() also loads the next tile
template <class Scorer>
__global__ void __launch_bounds__(kIndexThreads, 2) index_stream_kernel(IndexArguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float tile[kIndexTile];
  const int row = a.first_row + blockIdx.x, split = blockIdx.y;
  const AttentionSequence s = a.sequences.of_row(row);
  const int keys = s.context + row - s.first_row + 1;
  const bool chooses = s.block_table != nullptr && keys > a.k;
  const int per_split = keys_per_split(keys, a.splits);
  const int begin = split * per_split, end = chooses ? min(begin + per_split, keys) : begin;
  Scorer scorer;
  scorer.load_keys(a, s.block_table, begin, begin, min(end, s.context));  // which earlier steps have left
  let_next_start();
  wait_for_previous();
  if (!chooses) return;
  const int64_t place = int64_t{blockIdx.x} * a.splits + split;
  uint32_t* scores = a.scores + place * a.capacity;
  int32_t* positions = a.positions + place * a.capacity;
  int count = 0;
  uint32_t threshold = 0;
  bool full = false;  // k candidates have been found: what is not above the threshold is not among the best
  if (begin < end) {
    scorer.load_keys(a, s.block_table, begin, max(begin, s.context), end);
    scorer.load_query(a, row, memory);
    for (int first = begin; first < end; first += kIndexTile) {
      __syncthreads();
      if (!Scorer::kLoadsAhead && first > begin) scorer.load_keys(a, s.block_table, first, first, end);
      const int position = first + threadIdx.x;
      float scale = 1;
      if (Scorer::kScaled && position < end) scale = a.scales[a.slot(s.block_table, position)];
      scorer(a, s.block_table, first, end, tile);
      __syncthreads();
      const uint32_t score = ordered(tile[threadIdx.x] * scale);
      const bool takes = position < end && (!full || score > threshold);
      Places p = {static_cast<int>(threadIdx.x), 0, min(kIndexTile, end - first), 0};  // of all of a tile
      if (full) p = count_before<kIndexThreads>(takes, false);
      if (takes) {
        scores[count + p.first_before] = score;
        positions[count + p.first_before] = position;
      }
      count += p.first_total;
      if (count <= a.capacity - kIndexTile) continue;
      // Keep the k best of the candidates, in their order.
      __syncthreads();
      const Cut cut = find_cut(a.k, [&](const auto& take) {
        for (int i = threadIdx.x; i < count; i += kIndexThreads) take(scores[i]);
      });
      int kept = 0, ties = 0;
      for (int base = 0; base < count; base += kIndexThreads) {
        const int i = base + threadIdx.x;
        const uint32_t value = i < count ? scores[i] : 0;
        const int32_t at = i < count ? positions[i] : 0;
        const bool tie = i < count && value == cut.score;
        const Places t = count_before<kIndexThreads>(tie, false);
        const bool keep = i < count && (value > cut.score || (tie && ties + t.first_before < cut.ties));
        const Places k = count_before<kIndexThreads>(keep, false);
        if (keep) {  // not behind i, and all of this run have been read
          scores[kept + k.first_before] = value;
          positions[kept + k.first_before] = at;
        }
        ties += t.first_total;
        kept += k.first_total;
      }
      count = kept;
      threshold = cut.score;
      full = true;
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) a.counts[place] = count;
}

#endif

}  // namespace atom::ops::gpu_kernels
