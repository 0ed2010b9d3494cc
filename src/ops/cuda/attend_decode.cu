// Attention of decodes: when ops/cuda/attend_kernel.h takes an op, and how its context is split.
#include <algorithm>
#include <bit>

#include "ops/cuda/attend_kernel.h"

namespace atom::ops::gpu_kernels {
namespace {

int64_t groups_of(const Attend& op) {
  return int64_t{op.store.kv_heads} * ceil_div(op.store.heads / op.store.kv_heads, kHeads);
}

// Splits of each of `rows` (rows times groups of heads) for a device that holds `resident` blocks at a time.
int splits_for(int64_t rows, int64_t resident) {
  if (rows >= 4 * resident) return 1;
  int best = 1;
  double fullest = 0;  // share of the device that is at work, with the last round of blocks
  for (int64_t rounds = 1; rounds <= 3; ++rounds) {
    const int64_t splits = std::min<int64_t>(rounds * resident / rows, kMaxSplits);
    const double full = static_cast<double>(splits * rows) /
                        static_cast<double>(ceil_div(splits * rows, resident) * resident);
    if (splits > 0 && full > fullest + 0.1) {
      best = static_cast<int>(splits);
      fullest = full;
    }
  }
  return best;
}

template <class T, int kDim>
void start(Stream& stream, DecodeArguments a, int64_t rows, int64_t groups) {
  gpu::Queue& queue = stream.queue();
  const bool clusters = queue.capability() >= 90;
  int64_t resident = int64_t{kBlocks<T, kDim>} * queue.processors();
  // A cluster lies in one part of the device, and all shall find room at once.
  if (clusters && rows == 1) resident = resident * 3 / 4;
  a.splits = splits_for(rows * groups, resident);
  // One sequence has a context that is worth clusters; of several, short ones pay for blocks without keys.
  a.team = !clusters ? 1 : rows == 1 && a.splits >= kTeam ? kTeam : a.splits == 2 ? 2 : 1;
  a.splits = a.splits / a.team * a.team;
  const int teams = a.splits / a.team;
  const int64_t floats =
      teams == 1 ? 0 : rows * groups * partial_floats(teams, heads_of_block(a.heads_per_kv), kDim);
  a.partials = static_cast<float*>(queue.scratch(floats * static_cast<int64_t>(sizeof(float))));
  a.counters = queue.counters();
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(groups),
                  static_cast<unsigned>(a.splits));
  const size_t shared =
      clusters ? size_t{Places<T, kDim, kLargeRing>::kBytes} : size_t{Places<T, kDim, kSmallRing>::kBytes};
  if (a.team > 1) {
    return launch_clusters(queue, decode_kernel<T, kDim>, grid, dim3(1, 1, static_cast<unsigned>(a.team)),
                           dim3(kThreads), shared, a);
  }
  launch(queue, decode_kernel<T, kDim>, grid, dim3(kThreads), shared, a);
}

bool in_sixteens(const Tensor& cache) {
  const int64_t elements = 16 / dtype_bytes(cache.dtype, 1);
  return aligned16(cache.data) && cache.strides[0] % elements == 0 && cache.strides[1] % elements == 0;
}
bool in_fours(const Tensor& rows) { return aligned16(rows.data) && rows.strides[0] % 4 == 0; }

}  // namespace

const char* refuse_attend_decode(const Stream& stream, const Attend& op) {
  const AttentionBatch& batch = *op.store.batch;
  const Tensor& k = op.store.k_cache;
  const int capability = stream.queue().capability();
  if (capability < 80) return "needs compute capability 8.0";
  if (capability >= 120) return "blocks have too little shared memory";
  if (!Sequences(batch).one_row_each) return "sequences have several rows";
  if (k.dtype == DType::f32) return "for caches of 16 and fewer bits";
  if (k.dtype == DType::f8e4m3 && capability < 89) return "widens E4M3 with compute capability 8.9";
  const int dim = op.store.head_dim;
  if (dim != 64 && dim != 128 && dim != 256) return "for heads of 64, 128 or 256 lanes";
  if (batch.block_size < kKeys || !std::has_single_bit(static_cast<unsigned>(batch.block_size))) {
    return "a block of the cache is no power of two of 16 tokens or more";
  }
  if (bool(op.store.q_norm) != bool(op.store.k_norm)) return "norms one of two";
  if (batch.tokens * groups_of(op) > gpu::Queue::kCounters) return "too many sequences";
  if (!in_sixteens(k) || !in_sixteens(op.store.v_cache) || !in_fours(op.attention.out) ||
      (op.gate && !in_fours(op.gate))) {
    return "rows are not aligned";
  }
  return nullptr;
}

void attend_decode(Stream& stream, const Attend& op) {
  const QkNormRopeStore& s = op.store;
  const PagedAttention& p = op.attention;
  const int64_t rows = p.out.dim(0);
  if (rows == 0) return;
  const DecodeArguments a{.out = p.out.as<float>(),
                          .qkv = s.qkv.as<float>(),
                          .k = s.k_cache.data,
                          .v = s.v_cache.data,
                          .q_norm = s.q_norm.as<float>(),
                          .k_norm = s.k_norm.as<float>(),
                          .cos = s.rope.cos.as<float>(),
                          .sin = s.rope.sin.as<float>(),
                          .sinks = p.sinks.as<float>(),
                          .gate = op.gate.as<float>(),
                          .partials = nullptr,
                          .counters = nullptr,
                          .out_stride = p.out.strides[0],
                          .qkv_stride = s.qkv.strides[0],
                          .cos_stride = s.rope.cos.strides[0],
                          .sin_stride = s.rope.sin.strides[0],
                          .gate_stride = op.gate.strides[0],
                          .k_block_stride = s.k_cache.strides[0],
                          .k_head_stride = s.k_cache.strides[1],
                          .v_block_stride = s.v_cache.strides[0],
                          .v_head_stride = s.v_cache.strides[1],
                          .sequences = s.batch->sequences.data(),
                          .heads = s.heads,
                          .kv_heads = s.kv_heads,
                          .heads_per_kv = s.heads / s.kv_heads,
                          .groups_per_kv = static_cast<int>(ceil_div(s.heads / s.kv_heads, kHeads)),
                          .rotary_dim = s.rotary_dim,
                          .block_shift = std::countr_zero(static_cast<unsigned>(s.batch->block_size)),
                          .window = p.window,
                          .splits = 1,
                          .team = 1,
                          .interleaved = s.rope_interleaved,
                          .eps = s.norm_eps,
                          .weight_offset = s.norm_weight_offset,
                          .scale = p.scale * p.scales.k * kLog2e,
                          .per_k = 1 / s.scales.k,
                          .per_v = 1 / s.scales.v,
                          .value_scale = p.scales.v};
  with_narrow_cache(s.k_cache.dtype, [&](auto element) {
    using T = decltype(element);
    if (s.head_dim == 64) return start<T, 64>(stream, a, rows, groups_of(op));
    if (s.head_dim == 128) return start<T, 128>(stream, a, rows, groups_of(op));
    start<T, 256>(stream, a, rows, groups_of(op));
  });
}

}  // namespace atom::ops::gpu_kernels
