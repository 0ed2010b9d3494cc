// Attention of decodes: when ops/cuda/attend_kernel.h takes an op, and how its context is split.
#include <algorithm>
#include <bit>

#include "ops/cuda/attend_kernel.h"
#include "ops/gpu/deferred.h"

namespace atom::ops::gpu_kernels {
namespace {

int64_t groups_of(const Attend& op) {
  return int64_t{op.store.kv_heads} * ceil_div(op.store.heads / op.store.kv_heads, kHeads);
}

struct Shares {
  int splits = 1, team = 1;  // of a pair of a row and a group of heads; team: splits of a cluster
};

// Splits of each of `pairs` for a device that holds `resident` blocks at a time.
int splits_for(int64_t pairs, int64_t resident) {
  if (pairs >= 4 * resident) return 1;
  int best = 1;
  double fullest = 0;  // share of the device that is at work, with the last round of blocks
  for (int64_t rounds = 1; rounds <= 3; ++rounds) {
    const int64_t splits = std::min<int64_t>(rounds * resident / pairs, kMaxSplits);
    const double full = static_cast<double>(splits * pairs) /
                        static_cast<double>(ceil_div(splits * pairs, resident) * resident);
    if (splits > 0 && full > fullest + 0.1) {
      best = static_cast<int>(splits);
      fullest = full;
    }
  }
  return best;
}

Shares shares_for(const gpu::Queue& queue, int64_t rows, int64_t groups, int blocks) {
  const bool clusters = queue.capability() >= 90;
  int64_t resident = int64_t{blocks} * queue.processors();
  // A cluster lies in one part of the device, and all shall find room at once.
  if (clusters && rows == 1) resident = resident * 3 / 4;
  Shares s{.splits = splits_for(rows * groups, resident)};
  // One sequence has a context that is worth clusters; of several, short ones pay for blocks without keys.
  s.team = !clusters ? 1 : rows == 1 && s.splits >= kTeam ? kTeam : s.splits == 2 ? 2 : 1;
  s.splits = s.splits / s.team * s.team;
  return s;
}

// Calls fn(element, lanes of a head, whether a block has few heads), constants all.
template <class Fn>
void with_kernel(const Attend& op, const Fn& fn) {
  with_narrow_cache(op.store.k_cache.dtype, [&](auto element) {
    auto with_heads = [&](auto dim) {
      if (op.store.heads / op.store.kv_heads <= 4) return fn(element, dim, std::true_type{});
      fn(element, dim, std::false_type{});
    };
    if (op.store.head_dim == 64) return with_heads(std::integral_constant<int, 64>{});
    if (op.store.head_dim == 128) return with_heads(std::integral_constant<int, 128>{});
    with_heads(std::integral_constant<int, 256>{});
  });
}

Shares shares_of(const gpu::Queue& queue, const Attend& op) {
  Shares shares;
  with_kernel(op, [&](auto element, auto dim, auto few) {
    shares = shares_for(queue, op.attention.out.dim(0), groups_of(op),
                        kBlocks<decltype(element), dim, decltype(few)::value>);
  });
  return shares;
}

int64_t pairs_of(const Attend& op) { return op.attention.out.dim(0) * groups_of(op); }

int64_t partial_bytes(const Attend& op, const Shares& s) {
  const int teams = s.splits / s.team;
  if (teams == 1) return 0;
  return pairs_of(op) * static_cast<int64_t>(sizeof(float)) *
         partial_floats(teams, heads_of_block(op.store.heads / op.store.kv_heads), op.store.head_dim);
}

bool in_sixteens(const Tensor& cache) {
  const int64_t elements = 16 / dtype_bytes(cache.dtype, 1);
  return aligned16(cache.data) && cache.strides[0] % elements == 0 && cache.strides[1] % elements == 0;
}
bool in_fours(const Tensor& rows) { return aligned16(rows.data) && rows.strides[0] % 4 == 0; }

// Into `out`, f32 or what a product reads.
void attend_into(Stream& stream, const Attend& op, const Tensor& out, const Shares& shares) {
  const QkNormRopeStore& s = op.store;
  const PagedAttention& p = op.attention;
  gpu::Queue& queue = stream.queue();
  const int64_t rows = p.out.dim(0);
  if (rows == 0) return;
  const DecodeArguments a{.out = out.data,
                          .out_type = out.dtype,
                          .qkv = s.qkv.as<float>(),
                          .k = s.k_cache.data,
                          .v = s.v_cache.data,
                          .q_norm = s.q_norm.as<float>(),
                          .k_norm = s.k_norm.as<float>(),
                          .cos = s.rope.cos.as<float>(),
                          .sin = s.rope.sin.as<float>(),
                          .sinks = p.sinks.as<float>(),
                          .gate = op.gate.as<float>(),
                          .partials = static_cast<float*>(queue.scratch(partial_bytes(op, shares))),
                          .counters = queue.counters(),
                          .out_stride = out.strides[0],
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
                          .rows = static_cast<int>(rows),
                          .rotary_dim = s.rotary_dim,
                          .block_shift = std::countr_zero(static_cast<unsigned>(s.batch->block_size)),
                          .window = p.window,
                          .splits = shares.splits,
                          .team = shares.team,
                          .interleaved = s.rope_interleaved,
                          .eps = s.norm_eps,
                          .weight_offset = s.norm_weight_offset,
                          .scale = p.scale * p.scales.k * kLog2e,
                          .per_k = 1 / s.scales.k,
                          .per_v = 1 / s.scales.v,
                          .value_scale = p.scales.v};
  const dim3 grid(static_cast<unsigned>(pairs_of(op) * shares.splits));
  with_kernel(op, [&](auto element, auto dim, auto few) {
    using T = decltype(element);
    const auto kernel = decode_kernel<T, dim, decltype(few)::value>;
    const size_t shared = queue.capability() >= 90
                              ? size_t{Places<T, dim, kLargeRing<T, dim, decltype(few)::value>>::kBytes}
                              : size_t{Places<T, dim, kSmallRing>::kBytes};
    if (shares.team > 1) {
      return launch_clusters(queue, kernel, grid, dim3(static_cast<unsigned>(shares.team)), dim3(kThreads),
                             shared, a);
    }
    launch(queue, kernel, grid, dim3(kThreads), shared, a);
  });
}

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
  constexpr int64_t kFewRows = 8;  // products of so many read float32
  gpu::Queue& queue = stream.queue();
  const Shares shares = shares_of(queue, op);
  if (op.attention.out.dim(0) <= kFewRows) return attend_into(stream, op, op.attention.out, shares);
  queue.defer(std::make_unique<DeferredAttend>(op, partial_bytes(op, shares)));
}

void attend_unsplit(Stream& stream, const Attend& op) { attend_into(stream, op, op.attention.out, {}); }

void DeferredAttend::start(gpu::Queue& queue) {
  Stream stream(queue);
  attend_into(stream, op, out, shares_of(queue, op));
}

void DeferredAttend::start_rounded(gpu::Queue& queue, const Tensor& rounded, bool) {
  Stream stream(queue);
  attend_into(stream, op, rounded, shares_of(queue, op));
}

}  // namespace atom::ops::gpu_kernels
