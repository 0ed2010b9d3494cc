// The indexer's choice: scores in float32 for keys of any shape, and the choice among candidates.
//   score(u) = sum over heads of weights[h] * max(0, q_h · k_u)
// Bound of the plain scores: flops, a thread per key. Grid: (row, split of its keys). The choice: a block per
// row.
#include "ops/gpu/index_stream.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int64_t kScratchBytes = int64_t{64} << 20;
constexpr int kChooseThreads = 1024;
constexpr int kKept = 16;              // candidates per thread
constexpr int64_t kMaxRows = 1 << 15;  // of a run

template <class T>
struct PlainScorer {
  const float *q, *weights;  // in shared memory

  __device__ PlainScorer(const IndexArguments& a, int row, unsigned char* memory) {
    auto* floats = reinterpret_cast<float*>(memory);
    const int n = a.heads * a.dim;
    for (int i = threadIdx.x; i < n; i += kIndexThreads) floats[i] = a.q[row * a.q_stride + i];
    for (int i = threadIdx.x; i < a.heads; i += kIndexThreads)
      floats[n + i] = a.weights[row * a.weights_stride + i];
    q = floats;
    weights = floats + n;
    __syncthreads();
  }
  __device__ void operator()(const IndexArguments& a, const int32_t* table, int first, int end,
                             float* scores) const {
    const int p = first + threadIdx.x;
    if (p >= end) return;
    const T* key = static_cast<const T*>(a.cache) + table[p / a.block_size] * a.block_stride +
                   int64_t{p % a.block_size} * a.dim;
    float score = 0;
    for (int h = 0; h < a.heads; ++h) {
      float dot = 0;
      for (int d = 0; d < a.dim; ++d) dot += q[h * a.dim + d] * widen(key[d]);
      score += weights[h] * fmaxf(dot, 0);
    }
    scores[threadIdx.x] = score;
  }
};

// The k best candidates of all splits of a row, which are at least k.
__global__ void __launch_bounds__(kChooseThreads) choose_kernel(IndexArguments a) {
  __shared__ int counts[kIndexMaxSplits], first_run[kIndexMaxSplits + 1];  // runs of kIndexTile candidates
  let_next_start();
  wait_for_previous();
  const int row = a.first_row + blockIdx.x;
  const AttentionSequence& s = a.sequences.of_row(row);
  const int keys = s.context + row - s.first_row + 1;
  if (s.block_table == nullptr || keys <= a.k) return;
  const int64_t place = int64_t{blockIdx.x} * a.splits;
  if (threadIdx.x < a.splits) counts[threadIdx.x] = a.counts[place + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    first_run[0] = 0;
    for (int i = 0; i < a.splits; ++i)
      first_run[i + 1] = first_run[i] + (counts[i] + kIndexTile - 1) / kIndexTile;
  }
  __syncthreads();
  const int runs = first_run[a.splits];
  constexpr int kAtOnce = kChooseThreads / kIndexTile;
  const int mine = threadIdx.x / kIndexTile;
  // This thread's candidate of run i: its index, or -1.
  auto candidate = [&](int run) -> int64_t {
    if (run >= runs) return -1;
    int split = 0, end = a.splits;
    while (end - split > 1) {
      const int middle = (split + end) / 2;
      (first_run[middle] <= run ? split : end) = middle;
    }
    const int at = (run - first_run[split]) * kIndexTile + threadIdx.x % kIndexTile;
    return at < counts[split] ? (place + split) * a.capacity + at : -1;
  };
  // The first of this thread's candidates stay in registers from pass to pass.
  uint32_t kept_scores[kKept];
  int32_t kept_positions[kKept];  // -1: none
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t at = candidate(mine + i * kAtOnce);
    kept_scores[i] = at >= 0 ? a.scores[at] : 0;
    kept_positions[i] = at >= 0 ? a.positions[at] : -1;
  }
  const Cut cut = find_cut(a.k, [&](const auto& take) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (kept_positions[i] >= 0) take(kept_scores[i]);
    }
    for (int run = mine + kKept * kAtOnce; run < runs; run += kAtOnce) {
      if (const int64_t at = candidate(run); at >= 0) take(a.scores[at]);
    }
  });
  // Candidates before this one that are better than the cut or equal it: counted warp by warp, in order, for
  // all that are kept at once. A count has ties in its high and better ones in its low half.
  constexpr int kWarps = kChooseThreads / kWarp, kCounts = kKept * kWarps;
  static_assert(kCounts <= kChooseThreads && kKept * kChooseThreads < 1 << 16);
  __shared__ uint32_t before[kCounts], sums[kCounts / kWarp], all_kept;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const LaneMask below = (LaneMask{1} << lane) - 1;
  struct Votes {
    LaneMask ties, better;
  };
  auto votes = [&](int i) -> Votes {
    const bool some = kept_positions[i] >= 0;
    return {ballot(some && kept_scores[i] == cut.score), ballot(some && kept_scores[i] > cut.score)};
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const auto [ties, better] = votes(i);
    if (lane == 0)
      before[i * kWarps + warp] = static_cast<uint32_t>(count_bits(ties)) << 16 | count_bits(better);
  }
  __syncthreads();
  uint32_t count = 0, up_to = 0;  // of an entry, and with those before it in its warp
  if (threadIdx.x < kCounts) {
    count = up_to = before[threadIdx.x];
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const uint32_t other = shuffle_up(up_to, step);
      if (lane >= step) up_to += other;
    }
    if (lane == kWarp - 1) sums[warp] = up_to;
  }
  __syncthreads();
  if (threadIdx.x < kCounts) {
    uint32_t sum = up_to - count;
    for (int w = 0; w < warp; ++w) sum += sums[w];
    before[threadIdx.x] = sum;
    if (threadIdx.x == kCounts - 1) all_kept = sum + count;
  }
  __syncthreads();
  int32_t* out = a.out + row * a.out_stride;
  // Of the ties, the first cut.ties are chosen.
  auto put = [&](bool tie, bool better, int ties_before, int better_before, int32_t position) {
    if (better || (tie && ties_before < cut.ties)) out[better_before + min(ties_before, cut.ties)] = position;
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const auto [ties, better] = votes(i);
    const uint32_t sum = before[i * kWarps + warp];
    put(ties >> lane & 1, better >> lane & 1, static_cast<int>(sum >> 16) + count_bits(ties & below),
        static_cast<int>(sum & 0xFFFFu) + count_bits(better & below), kept_positions[i]);
  }
  int ties_before = static_cast<int>(all_kept >> 16), better_before = static_cast<int>(all_kept & 0xFFFFu);
  for (int run = kKept * kAtOnce; run < runs; run += kAtOnce) {
    const int64_t at = candidate(run + mine);
    const uint32_t score = at >= 0 ? a.scores[at] : 0;
    const bool tie = at >= 0 && score == cut.score, better = at >= 0 && score > cut.score;
    const Places p = count_before<kChooseThreads>(tie, better);
    put(tie, better, ties_before + p.first_before, better_before + p.second_before,
        at >= 0 ? a.positions[at] : -1);
    ties_before += p.first_total;
    better_before += p.second_total;
  }
}

}  // namespace

void start_index_select(Stream& stream, const IndexSelect& op, void (*kernel)(IndexArguments),
                        size_t shared) {
  gpu::Queue& queue = stream.queue();
  const int64_t tokens = op.q.dim(0), k = op.out.dim(1);
  if (tokens == 0) return;
  IndexArguments a{.out = op.out.as<int32_t>(),
                   .q = op.q.as<float>(),
                   .weights = op.weights.as<float>(),
                   .cache = op.cache.data,
                   .out_stride = op.out.strides[0],
                   .q_stride = op.q.strides[0],
                   .weights_stride = op.weights.strides[0],
                   .block_stride = op.cache.strides[0],
                   .sequences = Sequences(*op.batch),
                   .first_row = 0,
                   .heads = op.shape.heads,
                   .dim = op.shape.head_dim,
                   .block_size = op.batch->block_size,
                   .k = static_cast<int>(k),
                   .splits = 1,
                   .capacity = static_cast<int>(2 * k + kIndexTile),
                   .scores = nullptr,
                   .positions = nullptr,
                   .counts = nullptr};
  // Decodes are split until the device is filled twice; rows of prompts are many enough.
  const int64_t shares_at_once = std::max<int64_t>(1, kScratchBytes / (8 * int64_t{a.capacity}));
  const int64_t rows_at_once = std::min({shares_at_once, kMaxRows, tokens});
  if (a.sequences.one_row_each) {
    const int64_t filling = 2 * queue.processors() / rows_at_once;
    a.splits = static_cast<int>(
        std::clamp<int64_t>(std::min(filling, shares_at_once / rows_at_once), 1, kIndexMaxSplits));
  }
  // What any number of decodes asks for, so that it is planned whatever their number.
  const int64_t shares =
      a.sequences.one_row_each
          ? std::min(shares_at_once, std::max<int64_t>(2 * queue.processors(), rows_at_once))
          : rows_at_once;
  auto* memory = static_cast<std::byte*>(queue.scratch(shares * (8 * int64_t{a.capacity} + 4)));
  a.scores = reinterpret_cast<uint32_t*>(memory);
  a.positions = reinterpret_cast<int32_t*>(memory) + shares * a.capacity;
  a.counts = a.positions + shares * a.capacity;
  for (int64_t first = 0; first < tokens; first += rows_at_once) {
    a.first_row = static_cast<int>(first);
    const auto rows = static_cast<unsigned>(std::min(rows_at_once, tokens - first));
    launch(queue, kernel, dim3(rows, static_cast<unsigned>(a.splits)), dim3(kIndexThreads), shared, a);
    launch(queue, choose_kernel, dim3(rows), dim3(kChooseThreads), 0, a);
  }
}

void index_select_plain(Stream& stream, const IndexSelect& op) {
  const size_t shared = static_cast<size_t>(op.shape.heads) * (op.shape.head_dim + 1) * sizeof(float);
  with_element(op.cache.dtype, [&](auto element) {
    start_index_select(stream, op, index_stream_kernel<PlainScorer<decltype(element)>>, shared);
  });
}

}  // namespace atom::ops::gpu_kernels
