// Absorbed latent attention: the steps around the part that reads the cache, and the plain form of that part.
//   score = q·c_u + q_pe·k_pe_u, out = sum of p_u c_u, for q = W_kᵀ q_nope
// Bound of the plain form: flops. Grid: (row, 8 heads). Each warp has a head; tiles of keys are widened into
// shared memory for all of them.
#include <algorithm>

#include "ops/gpu/elements.h"
#include "ops/gpu/latent_kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kMaxTile = 16;                         // keys
constexpr int64_t kMemoryBytes = int64_t{96} << 10;  // of shared memory, for queries, sums and keys
constexpr int64_t kRunBytes = int64_t{128} << 20;    // of scratch for one run of rows
constexpr int64_t kMaxRun = 1 << 15;                 // rows

struct PlainArguments {
  float* out;
  const float *q, *q_pe;
  const void* cache;
  const int32_t* selected;  // null: every position
  int64_t q_pe_stride, selected_stride, block_stride;
  Sequences sequences;
  int first_row, heads, query_dim, rank, rope_dim, block_size, selection, tile;
  float scale;
};

template <class T>
__global__ void __launch_bounds__(kThreads) plain_kernel(PlainArguments a) {
  extern __shared__ float memory[];
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int row = a.first_row + blockIdx.x, entry = a.rank + a.rope_dim;
  const int head = blockIdx.y * kWarps + warp;
  const bool mine = head < a.heads;
  float* out = a.out + (int64_t{blockIdx.x} * a.heads + head) * a.rank;
  const AttentionSequence& s = a.sequences.of_row(row);
  if (s.block_table == nullptr) {
    for (int d = lane; mine && d < a.rank; d += kWarp) out[d] = 0;
    return;
  }
  float* q = memory + warp * entry;
  float* sums = memory + kWarps * entry + warp * a.rank;
  float* keys = memory + kWarps * (entry + a.rank);
  if (mine) {
    const float* from = a.q + (int64_t{blockIdx.x} * a.heads + head) * a.rank;
    const float* pe = a.q_pe + row * a.q_pe_stride + int64_t{head} * a.query_dim;
    for (int d = lane; d < entry; d += kWarp) q[d] = (d < a.rank ? from[d] : pe[d - a.rank]) * a.scale;
    for (int d = lane; d < a.rank; d += kWarp) sums[d] = 0;
  }
  const int position = s.context + row - s.first_row;
  const int32_t* selected =
      a.selected != nullptr && position >= a.selection ? a.selected + row * a.selected_stride : nullptr;
  const int count = selected == nullptr ? position + 1 : a.selection;
  float largest = -INFINITY, weight = 0;
  for (int first = 0; first < count; first += a.tile) {
    const int keys_here = min(a.tile, count - first);
    __syncthreads();
    for (int i = threadIdx.x; i < keys_here * entry; i += kThreads) {
      const int key = i / entry, d = i % entry, p = selected == nullptr ? first + key : selected[first + key];
      const T* from = static_cast<const T*>(a.cache) + s.block_table[p / a.block_size] * a.block_stride;
      keys[i] = widen(from[int64_t{p % a.block_size} * entry + d]);
    }
    __syncthreads();
    if (!mine) continue;
    float mine_score = -INFINITY;  // of key `lane`
    for (int key = 0; key < keys_here; ++key) {
      float sum = 0;
      for (int d = lane; d < entry; d += kWarp) sum += q[d] * keys[key * entry + d];
      sum = warp_sum(sum);
      if (lane == key) mine_score = sum;
    }
    const float top = fmaxf(largest, warp_max(mine_score)), correction = expf(largest - top);
    const float p = expf(mine_score - top);
    largest = top;
    weight = weight * correction + warp_sum(p);
    for (int d = lane; d - lane < a.rank; d += kWarp) {
      float sum = d < a.rank ? sums[d] * correction : 0;
      for (int key = 0; key < keys_here; ++key) {
        const float share = shuffle(p, key);
        if (d < a.rank) sum += share * keys[key * entry + d];
      }
      if (d < a.rank) sums[d] = sum;
    }
  }
  if (!mine) return;
  for (int d = lane; d < a.rank; d += kWarp) out[d] = sums[d] / weight;
}

void run_plain(Stream& stream, const LatentRows& rows) {
  const LatentAttention& op = rows.op;
  const LatentShape& s = op.shape;
  const int64_t floats = kMemoryBytes / 4, around = kWarps * (s.entry_dim() + int64_t{s.kv_rank});
  const auto tile = static_cast<int>(std::clamp<int64_t>((floats - around) / s.entry_dim(), 1, kMaxTile));
  const PlainArguments a{.out = rows.out,
                         .q = rows.q,
                         .q_pe = op.q.as<float>() + s.nope_dim,
                         .cache = op.cache.data,
                         .selected = op.selected.as<int32_t>(),
                         .q_pe_stride = op.q.strides[0],
                         .selected_stride = op.selected.strides[0],
                         .block_stride = op.cache.strides[0],
                         .sequences = Sequences(*op.batch),
                         .first_row = static_cast<int>(rows.first),
                         .heads = s.heads,
                         .query_dim = s.query_dim(),
                         .rank = s.kv_rank,
                         .rope_dim = s.rope_dim,
                         .block_size = op.batch->block_size,
                         .selection = op.selected ? static_cast<int>(op.selected.dim(1)) : 0,
                         .tile = tile,
                         .scale = op.scale};
  const size_t shared = static_cast<size_t>(around + int64_t{tile} * s.entry_dim()) * sizeof(float);
  with_element(op.cache.dtype, [&](auto element) {
    launch(stream.queue(), plain_kernel<decltype(element)>,
           dim3(static_cast<unsigned>(rows.count), static_cast<unsigned>(ceil_div(s.heads, kWarps))),
           dim3(kThreads), shared, a);
  });
}

}  // namespace

void latent_absorbed(Stream& stream, const LatentAttention& op, const LatentCore& core, int64_t begin,
                     int64_t end) {
  const LatentShape& s = op.shape;
  const int32_t head_rows = s.nope_dim + s.v_dim;
  const int64_t wide = int64_t{s.heads} * s.kv_rank * static_cast<int64_t>(sizeof(float));  // bytes of a row
  const int64_t most = std::clamp<int64_t>(kRunBytes / (2 * wide), 1, kMaxRun);
  const Device device = op.out.device;
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = std::min(most, end - first);
    auto* memory = static_cast<std::byte*>(
        stream.queue().scratch(2 * count * wide + core.scratch_bytes(stream, op, count)));
    if (stream.queue().planning()) return;  // later runs are no larger, and the products need no scratch
    const Tensor q = make_tensor(memory, DType::f32, {count, int64_t{s.heads} * s.kv_rank}, device);
    const Tensor out =
        make_tensor(memory + count * wide, DType::f32, {count, int64_t{s.heads} * s.kv_rank}, device);
    run(stream, HeadProject{q, op.q.rows(first, count), op.kv_b, s.heads, head_rows, 0, s.nope_dim,
                            s.query_dim(), s.kv_rank, false, op.precision});
    core.run(stream, {op, first, count, q.as<float>(), out.as<float>(), memory + 2 * count * wide});
    run(stream, HeadProject{op.out.rows(first, count), out, op.kv_b, s.heads, head_rows, s.nope_dim, s.v_dim,
                            s.kv_rank, s.v_dim, true, op.precision});
  }
}

void latent_plain_rows(Stream& stream, const LatentAttention& op, int64_t begin, int64_t end) {
  latent_absorbed(stream, op,
                  {[](const Stream&, const LatentAttention&, int64_t) { return int64_t{0}; }, run_plain},
                  begin, end);
}

void latent_attention_plain(Stream& stream, const LatentAttention& op) {
  latent_plain_rows(stream, op, 0, op.out.dim(0));
}

}  // namespace atom::ops::gpu_kernels
