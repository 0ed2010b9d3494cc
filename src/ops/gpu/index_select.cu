// The indexer's choice: scores in float32 for keys of any shape, and the choice among candidates.
//   score(u) = sum over heads of weights[h] * max(0, q_h · k_u)
// Bound of the plain scores: flops, a thread per key. Grid: (row, split of its keys). The choice: a block per
// row.
#include <bit>

#include "ops/gpu/cache_elements.h"
#include "ops/gpu/index_choose.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int64_t kScratchBytes = int64_t{64} << 20;
constexpr int kChooseThreads = 1024;
constexpr int64_t kMaxRows = 1 << 15;  // of a run

template <class T>
struct PlainScorer {
  static constexpr bool kScaled = std::is_same_v<T, Fp8>, kLoadsAhead = false;
  const float *q, *weights;  // in shared memory

  __device__ void load_keys(const IndexArguments&, const int32_t*, int, int, int) {}
  __device__ void load_query(const IndexArguments& a, int row, unsigned char* memory) {
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
    const T* key = static_cast<const T*>(a.cache) + a.slot(table, p) * a.dim;
    float score = 0;
    for (int h = 0; h < a.heads; ++h) {
      float dot = 0;
      for (int d = 0; d < a.dim; ++d) dot += q[h * a.dim + d] * widen(key[d]);
      score += weights[h] * fmaxf(dot, 0);
    }
    scores[threadIdx.x] = score;
  }
};

// A block alone chooses for a row.
struct OneBlock {
  __device__ static int rank() { return 0; }
  __device__ static int size() { return 1; }
  __device__ static void join() { __syncthreads(); }
  __device__ static int sum(const int* value) { return *value; }
  __device__ static Found before(const Found&) { return {0, 0}; }
  __device__ static void leave() {}
};

__global__ void __launch_bounds__(kChooseThreads) choose_kernel(IndexArguments a) {
  choose<kChooseThreads, 16>(a, blockIdx.x, OneBlock{});
}

int shift_of(int32_t n) {
  return std::has_single_bit(static_cast<uint32_t>(n)) ? std::countr_zero(static_cast<uint32_t>(n)) : -1;
}

}  // namespace

void choose_by_block(gpu::Queue& queue, const IndexArguments& a, unsigned rows) {
  launch(queue, choose_kernel, dim3(rows), dim3(kChooseThreads), 0, a);
}

void start_index_select(Stream& stream, const IndexSelect& op, void (*kernel)(IndexArguments), size_t shared,
                        StartChoice* choose) {
  gpu::Queue& queue = stream.queue();
  const int64_t tokens = op.q.dim(0), k = op.out.dim(1);
  if (tokens == 0) return;
  IndexArguments a{.out = op.out.as<int32_t>(),
                   .q = op.q.as<float>(),
                   .weights = op.weights.as<float>(),
                   .cache = op.cache.data,
                   .scales = op.scales.as<float>(),
                   .out_stride = op.out.strides[0],
                   .q_stride = op.q.strides[0],
                   .weights_stride = op.weights.strides[0],
                   .sequences = Sequences(*op.batch),
                   .first_row = 0,
                   .heads = op.shape.heads,
                   .dim = op.shape.head_dim,
                   .block_size = op.batch->block_size,
                   .k = static_cast<int>(k),
                   .splits = 1,
                   .capacity = static_cast<int>(2 * k + kIndexTile),
                   .block_shift = shift_of(op.batch->block_size),
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
    choose(queue, a, rows);
  }
}

void index_select_plain(Stream& stream, const IndexSelect& op) {
  const size_t shared = static_cast<size_t>(op.shape.heads) * (op.shape.head_dim + 1) * sizeof(float);
  with_cache_element(op.cache.dtype, [&](auto element) {
    start_index_select(stream, op, index_stream_kernel<PlainScorer<decltype(element)>>, shared,
                       choose_by_block);
  });
}

}  // namespace atom::ops::gpu_kernels
