// The choice among the candidates of all splits of a row (index_stream.h), by one block or by several that
// can add up what they count. Device code only.
#pragma once
#include "ops/gpu/index_stream.h"

namespace atom::ops::gpu_kernels {

#if defined(__CUDACC__) || defined(__HIPCC__)

// Candidates that equal the cut, and better ones.
struct Found {
  int ties, better;
};

// Writes the k best candidates of row `index` of the run, which are at least k. It waits for the kernel
// before itself. Group: the blocks that do so together.
//   rank(), size(): which block this is, of how many
//   join(): a barrier of all threads of all blocks
//   sum(value): over the blocks, of what lies at this place of shared memory; before the second join() after
//     it was written no block may change it
//   before(found): the sum over the blocks before this one; of all threads
//   leave(): before a block ends
template <int kThreads, int kKept, class Group>
__device__ void choose(const IndexArguments& a, int index, Group group) {
  constexpr int kWarps = kThreads / kWarp, kDigits = 256, kEach = kDigits / kWarp;
  constexpr int kAtOnce = kThreads / kIndexTile, kCounts = kKept * kWarps;
  static_assert(kThreads >= kDigits && kCounts <= kThreads && kKept * kThreads < 1 << 16);
  // Candidates lie in runs of kIndexTile, the last of a split in a shorter one.
  __shared__ int counts[kIndexMaxSplits], first_run[kIndexMaxSplits + 1];
  __shared__ int histograms[2][kDigits];
  __shared__ __align__(16) int all[kDigits];
  let_next_start();
  const int row = a.first_row + index;
  const AttentionSequence& s = a.sequences.of_row(row);
  const int keys = s.context + row - s.first_row + 1;
  // What waits for this kernel waits for those before it as well.
  if (s.block_table == nullptr || keys <= a.k) return wait_for_previous();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // This block's share of the splits that have keys.
  const int per_split = keys_per_split(keys, a.splits), active = (keys + per_split - 1) / per_split;
  const int first_split = active * group.rank() / group.size();
  const int splits = active * (group.rank() + 1) / group.size() - first_split;
  const int64_t place = int64_t{index} * a.splits + first_split;
  for (int i = threadIdx.x; i < 2 * kDigits; i += kThreads) histograms[i / kDigits][i % kDigits] = 0;
  // Splits that never had too many have kept all: what they have is known before they have it.
  const bool kept_all = per_split <= 2 * a.k;
  const int first_key = first_split * per_split, runs_each = per_split / kIndexTile;
  int runs = (min(splits * per_split, keys - first_key) + kIndexTile - 1) / kIndexTile;
  const int at_first = threadIdx.x / kIndexTile, in_run = threadIdx.x % kIndexTile;
  const uint32_t* scores = a.scores + place * a.capacity + in_run;
  const int32_t* positions = a.positions + place * a.capacity + in_run;
  // This thread's candidate of a run: its place, or -1; and its position.
  auto candidate = [&](int run) {
    if (run >= runs) return -1;
    if (kept_all) {
      const int split = static_cast<unsigned>(run) / static_cast<unsigned>(runs_each);
      const bool exists = first_key + run * kIndexTile + in_run < keys;
      return exists ? split * a.capacity + (run - split * runs_each) * kIndexTile : -1;
    }
    int split = 0, end = splits;
    while (end - split > 1) {
      const int middle = (split + end) / 2;
      (first_run[middle] <= run ? split : end) = middle;
    }
    const int before = (run - first_run[split]) * kIndexTile;
    return before + in_run < counts[split] ? split * a.capacity + before : -1;
  };
  auto position_of = [&](int run, int at) {
    return kept_all ? first_key + run * kIndexTile + in_run : positions[at];
  };
  int kept[kKept];
  auto find_kept = [&] {
#pragma unroll
    for (int i = 0; i < kKept; ++i) kept[i] = candidate(at_first + i * kAtOnce);
  };
  if (kept_all) find_kept();
  __syncthreads();
  wait_for_previous();
  if (!kept_all) {
    if (threadIdx.x < splits) counts[threadIdx.x] = a.counts[place + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      first_run[0] = 0;
      for (int i = 0; i < splits; ++i)
        first_run[i + 1] = first_run[i] + (counts[i] + kIndexTile - 1) / kIndexTile;
    }
    __syncthreads();
    runs = first_run[splits];
    find_kept();
  }
  // The first of this thread's candidates stay in registers from pass to pass.
  uint32_t kept_scores[kKept];
  int32_t kept_positions[kKept];  // -1: none
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    kept_scores[i] = kept[i] >= 0 ? scores[kept[i]] : 0;
    kept_positions[i] = kept[i] >= 0 ? position_of(at_first + i * kAtOnce, kept[i]) : -1;
  }
  auto for_each = [&](const auto& take) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (kept_positions[i] >= 0) take(kept_scores[i]);
    }
    for (int run = at_first + kKept * kAtOnce; run < runs; run += kAtOnce) {
      if (const int at = candidate(run); at >= 0) take(scores[at]);
    }
  };

  // The cut, digit by digit.
  uint32_t cut = 0, mask = 0;
  int left = a.k;
#pragma unroll 1
  for (int pass = 0; pass < 4; ++pass) {
    const int shift = 24 - 8 * pass;
    int* histogram = histograms[pass % 2];
    for_each([&](uint32_t score) {
      if ((score & mask) == cut) atomicAdd(&histogram[score >> shift & 255], 1);
    });
    group.join();
    if (threadIdx.x < kDigits) {
      all[threadIdx.x] = group.sum(&histogram[threadIdx.x]);
      histograms[1 - pass % 2][threadIdx.x] = 0;
    }
    __syncthreads();
    // Every warp looks for the digit: lane i has those from the i-th largest group of kEach.
    int values[kEach], up_to = 0;  // up_to: with those of larger digits
    const int top = kDigits - 1 - lane * kEach;
#pragma unroll
    for (int i = 0; i < kEach; ++i) up_to += values[i] = all[top - i];
    const int sum = up_to;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = shuffle_up(up_to, step);
      if (lane >= step) up_to += other;
    }
    int before = up_to - sum, digit = 0;
    const LaneMask here = ballot(before < left && up_to >= left);
    bool found = false;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      found = found || before + values[i] >= left;
      if (!found) {
        before += values[i];
        ++digit;
      }
    }
    const int lane_here = first_bit(here);
    digit = shuffle(top - digit, lane_here);
    left -= shuffle(before, lane_here);
    cut |= static_cast<uint32_t>(digit) << shift;
    mask |= 255u << shift;
  }
  const int ties_wanted = left;

  // Candidates before this one that are better than the cut or equal it: counted warp by warp, in order, for
  // all that are kept at once. A count has ties in its high and better ones in its low half.
  __shared__ uint32_t before[kCounts], sums[(kCounts + kWarp - 1) / kWarp], all_kept;
  __shared__ int rest_ties, rest_better;
  const LaneMask below = (LaneMask{1} << lane) - 1;
  struct Votes {
    LaneMask ties, better;
  };
  auto votes = [&](int i) -> Votes {
    const bool some = kept_positions[i] >= 0;
    return {ballot(some && kept_scores[i] == cut), ballot(some && kept_scores[i] > cut)};
  };
  if (threadIdx.x == 0) rest_ties = rest_better = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const auto [ties, better] = votes(i);
    if (lane == 0)
      before[i * kWarps + warp] = static_cast<uint32_t>(count_bits(ties)) << 16 | count_bits(better);
  }
  __syncthreads();
  uint32_t count = 0, up_to = 0;  // of an entry, and with those before it in its warp
  if (threadIdx.x < kCounts) count = up_to = before[threadIdx.x];
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t other = shuffle_up(up_to, step);
    if (lane >= step) up_to += other;
  }
  if (threadIdx.x < kCounts && lane == kWarp - 1) sums[warp] = up_to;
  if (group.size() > 1) {
    Found rest = {0, 0};
    for (int run = at_first + kKept * kAtOnce; run < runs; run += kAtOnce) {
      const int at = candidate(run);
      const uint32_t score = at >= 0 ? scores[at] : 0;
      rest.ties += at >= 0 && score == cut;
      rest.better += at >= 0 && score > cut;
    }
    if (rest.ties > 0) atomicAdd(&rest_ties, rest.ties);
    if (rest.better > 0) atomicAdd(&rest_better, rest.better);
  }
  __syncthreads();
  if (threadIdx.x < kCounts) {
    uint32_t sum = up_to - count;
    for (int w = 0; w < warp; ++w) sum += sums[w];
    before[threadIdx.x] = sum;
    if (threadIdx.x == kCounts - 1) all_kept = sum + count;
  }
  __syncthreads();
  Found earlier = group.before(
      {static_cast<int>(all_kept >> 16) + rest_ties, static_cast<int>(all_kept & 0xFFFFu) + rest_better});
  int32_t* out = a.out + row * a.out_stride;
  // Of the ties, the first are chosen.
  auto put = [&](bool tie, bool better, int ties_before, int better_before, int32_t position) {
    if (better || (tie && ties_before < ties_wanted))
      out[better_before + min(ties_before, ties_wanted)] = position;
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const auto [ties, better] = votes(i);
    const uint32_t sum = before[i * kWarps + warp];
    put(ties >> lane & 1, better >> lane & 1,
        earlier.ties + static_cast<int>(sum >> 16) + count_bits(ties & below),
        earlier.better + static_cast<int>(sum & 0xFFFFu) + count_bits(better & below), kept_positions[i]);
  }
  earlier.ties += static_cast<int>(all_kept >> 16);
  earlier.better += static_cast<int>(all_kept & 0xFFFFu);
  for (int run = kKept * kAtOnce; run < runs; run += kAtOnce) {
    const int at = candidate(run + at_first);
    const uint32_t score = at >= 0 ? scores[at] : 0;
    const bool tie = at >= 0 && score == cut, better = at >= 0 && score > cut;
    const Places p = count_before<kThreads>(tie, better);
    put(tie, better, earlier.ties + p.first_before, earlier.better + p.second_before,
        at >= 0 ? position_of(run + at_first, at) : -1);
    earlier.ties += p.first_total;
    earlier.better += p.second_total;
  }
  group.leave();
}

#endif

}  // namespace atom::ops::gpu_kernels
