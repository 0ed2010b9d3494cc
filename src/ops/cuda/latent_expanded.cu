// Latent attention of prompts in its expanded form: keys and values of some heads at a time are written out
// for all positions of a sequence, then it is ordinary attention with narrower heads.
//   k_h(u) = [W_k c_u | k_pe_u], v_h(u) = W_v c_u, rounded to the cache's type
// It costs one product per position that the absorbed form does not have and saves work per pair of row and
// position: prompts win, few rows behind a long context lose. Bound: tensor cores. The kernels here move
// rows: entries of the cache to the product's operand, its results to a cache as PagedAttention reads it,
// queries and sums to and from heads of as many lanes.
#include <algorithm>
#include <bit>
#include <utility>

#include "ops/gpu/elements.h"
#include "ops/gpu/kernels.h"
#include "ops/gpu/latent_kernels.h"
#include "ops/gpu/sequences.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = 64;      // positions of a block of the expanded cache
constexpr int kLeastRows = 64;  // of a sequence
constexpr int64_t kMostHeadLanes = 256;
constexpr int64_t kFewHeads = 8;  // fewer at a time leave processors idle
constexpr int64_t kMostPositions = 1 << 15;
constexpr int64_t kScratchBytes = int64_t{512} << 20;  // at most, by taking fewer heads at a time
static_assert(sizeof(uint4) == 8 * sizeof(uint16_t));

// How one sequence is computed: sizes, and places in scratch.
struct Expansion {
  const LatentAttention& op;
  AttentionSequence sequence;
  int64_t positions;      // whole blocks
  int64_t dim;            // lanes of a head of the expanded cache
  int64_t heads = 0;      // of a group; 0: not even a few have room
  bool wide_q, wide_out;  // queries, sums go through scratch for heads of `dim` lanes
  bool widen;             // the weight does, too
  int64_t latents = 0, keys_pe, batch, table, weight, products, k, v, q, out, workspace, bytes;

  Expansion(const LatentAttention& op, const AttentionSequence& s) : op(op), sequence(s) {
    const LatentShape& shape = op.shape;
    positions = ceil_div(int64_t{s.context} + s.rows, kBlock) * kBlock;
    dim =
        std::max<int64_t>(64, std::bit_ceil(static_cast<unsigned>(std::max(shape.query_dim(), shape.v_dim))));
    wide_q = shape.query_dim() != dim;
    wide_out = shape.v_dim != dim;
    widen = op.kv_b.parts[0].data.dtype != op.cache.dtype;
    if (positions > kMostPositions) return;
    int64_t group = shape.heads;
    while (place(group) > kScratchBytes) {
      if (group <= kFewHeads) return;
      group = group * 3 / 4;
    }
    const int64_t groups = ceil_div(shape.heads, group);
    heads = ceil_div(shape.heads, groups);
    place(heads);
  }

  // Whether this is less work than the absorbed form, both for one head in flops.
  bool pays() const {
    const LatentShape& shape = op.shape;
    if (sequence.block_table == nullptr || sequence.rows < kLeastRows || heads == 0) return false;
    const int64_t rows = sequence.rows, context = sequence.context;
    if (op.selected && context + rows > op.selected.dim(1)) return false;
    const int64_t pairs = rows * context + rows * (rows + 1) / 2, pairs_tiled = pairs + rows * kBlock;
    const int64_t product = 2 * int64_t{shape.kv_rank} * (shape.nope_dim + shape.v_dim);
    return pairs_tiled * 4 * dim + positions * product <
           pairs * 2 * (shape.entry_dim() + shape.kv_rank) + rows * product;
  }

  // What any sequence of up to as many rows as the op has may need.
  static int64_t most_bytes(const LatentAttention& op) {
    const auto rows = static_cast<int32_t>(std::min(op.out.dim(0), kMostPositions));
    Expansion largest(op, {0, rows, static_cast<int32_t>(kMostPositions) - rows, nullptr});
    return std::min(kScratchBytes, largest.place(op.shape.heads));
  }

 private:
  // The bytes for `group` heads at a time.
  int64_t place(int64_t group) {
    constexpr int64_t kHalf = 2, kFloat = 4;
    const LatentShape& shape = op.shape;
    const int64_t head_rows = shape.nope_dim + shape.v_dim;
    int64_t end = 0;
    auto take = [&](int64_t size) { return std::exchange(end, end + aligned(size)); };
    latents = take(positions * shape.kv_rank * kHalf);
    keys_pe = take(positions * shape.rope_dim * kHalf);
    batch = take(sizeof(AttentionSequence));
    table = take(positions / kBlock * static_cast<int64_t>(sizeof(int32_t)));
    weight = take(widen ? group * head_rows * shape.kv_rank * kHalf : 0);
    products = take(positions * group * head_rows * kHalf);
    k = take(positions * group * dim * kHalf);
    v = take(positions * group * dim * kHalf);
    q = take(wide_q ? sequence.rows * group * dim * kFloat : 0);
    out = take(wide_out ? sequence.rows * group * dim * kFloat : 0);
    workspace = take(kLibraryWorkspaceBytes);
    return bytes = end;
  }
};

struct GatherArguments {
  uint4 *latents, *keys_pe;
  AttentionSequence* batch;
  int32_t* table;
  const uint4* cache;
  const int32_t* block_table;
  int64_t block_stride;                    // in units of 16 bytes
  int block_size, latent_units, pe_units;  // of a position
  int rows, context;
};

// The entries of all positions, zeros behind them, and the batch of the expanded cache. Grid: (position).
__global__ void __launch_bounds__(kThreads) gather_kernel(GatherArguments a) {
  let_next_start();
  wait_for_previous();
  const int p = blockIdx.x, entry = a.latent_units + a.pe_units;
  if (p == 0 && threadIdx.x == 0) *a.batch = {0, a.rows, a.context, a.table};
  if (p % kBlock == 0 && threadIdx.x == 0) a.table[p / kBlock] = p / kBlock;
  const bool valid = p < a.context + a.rows;
  const uint4* from =
      a.cache +
      (valid ? a.block_table[p / a.block_size] * a.block_stride + int64_t{p % a.block_size} * entry : 0);
  for (int i = threadIdx.x; i < entry; i += kThreads) {
    const uint4 x = valid ? from[i] : uint4{};
    if (i < a.latent_units) {
      a.latents[int64_t{p} * a.latent_units + i] = x;
    } else {
      a.keys_pe[int64_t{p} * a.pe_units + i - a.latent_units] = x;
    }
  }
}

struct CacheArguments {
  uint4 *k, *v;           // [blocks, heads, kBlock, units]
  const uint4* products;  // [positions, heads, nope_units + v_units]
  const uint4* keys_pe;   // [positions, pe_units]
  int heads, units, nope_units, pe_units, v_units;
};

// Grid: (position).
__global__ void __launch_bounds__(kThreads) cache_kernel(CacheArguments a) {
  let_next_start();
  wait_for_previous();
  const int p = blockIdx.x;
  const uint4* products = a.products + int64_t{p} * a.heads * (a.nope_units + a.v_units);
  for (int i = threadIdx.x; i < 2 * a.heads * a.units; i += kThreads) {
    const int head = i / (2 * a.units), at = i % (2 * a.units), unit = at % a.units;
    const uint4* product = products + head * (a.nope_units + a.v_units);
    const int64_t to = ((int64_t{p / kBlock} * a.heads + head) * kBlock + p % kBlock) * a.units + unit;
    uint4 x = {};
    if (at < a.units) {
      if (unit < a.nope_units) {
        x = product[unit];
      } else if (unit < a.nope_units + a.pe_units) {
        x = a.keys_pe[int64_t{p} * a.pe_units + unit - a.nope_units];
      }
      a.k[to] = x;
    } else {
      if (unit < a.v_units) x = product[a.nope_units + unit];
      a.v[to] = x;
    }
  }
}

// Heads of `from_lanes` lanes become heads of `to_lanes`, cut or filled with zeros; lanes in fours. Grid:
// (row).
__global__ void __launch_bounds__(kThreads)
    fit_kernel(float* to, int64_t to_stride, int to_lanes, const float* from, int64_t from_stride,
               int from_lanes, int heads) {
  let_next_start();
  wait_for_previous();
  const int quads = to_lanes / 4;
  to += blockIdx.x * to_stride;
  from += blockIdx.x * from_stride;
  for (int i = threadIdx.x; i < heads * quads; i += kThreads) {
    const int head = i / quads, lane = i % quads * 4;
    float4 x = {};
    if (lane < from_lanes) x = *reinterpret_cast<const float4*>(from + head * from_lanes + lane);
    *reinterpret_cast<float4*>(to + head * to_lanes + lane) = x;
  }
}

void fit_heads(Stream& stream, const Tensor& to, int64_t to_lanes, const Tensor& from, int64_t from_lanes,
               int64_t heads) {
  launch(stream.queue(), fit_kernel, dim3(static_cast<unsigned>(to.dim(0))), dim3(kThreads), 0,
         to.as<float>(), to.strides[0], static_cast<int>(to_lanes), from.as<float>(), from.strides[0],
         static_cast<int>(from_lanes), static_cast<int>(heads));
}

class Expanded {
 public:
  Expanded(Stream& stream, const Expansion& e)
      : stream_(stream),
        e_(e),
        op_(e.op),
        s_(e.op.shape),
        memory_(static_cast<std::byte*>(stream.queue().scratch(e.bytes))) {}

  void run() {
    gather();
    for (int64_t head = 0; head < s_.heads; head += e_.heads) {
      const int64_t heads = std::min(e_.heads, s_.heads - head);
      expand(head, heads);
      attend(head, heads);
    }
  }

 private:
  Tensor place(int64_t offset, DType dtype, std::initializer_list<int64_t> shape) const {
    return make_tensor(memory_ + offset, dtype, shape, op_.out.device);
  }
  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }

  void gather() {
    const AttentionSequence& s = e_.sequence;
    launch(stream_.queue(), gather_kernel, dim3(static_cast<unsigned>(e_.positions)), dim3(kThreads), 0,
           GatherArguments{.latents = at<uint4>(e_.latents),
                           .keys_pe = at<uint4>(e_.keys_pe),
                           .batch = at<AttentionSequence>(e_.batch),
                           .table = at<int32_t>(e_.table),
                           .cache = op_.cache.as<uint4>(),
                           .block_table = s.block_table,
                           .block_stride = op_.cache.strides[0] / 8,
                           .block_size = op_.batch->block_size,
                           .latent_units = s_.kv_rank / 8,
                           .pe_units = s_.rope_dim / 8,
                           .rows = s.rows,
                           .context = s.context});
  }

  void expand(int64_t head, int64_t heads) {
    const int64_t head_rows = s_.nope_dim + s_.v_dim;
    const WeightPart part = op_.kv_b.parts[0].rows(head * head_rows, heads * head_rows);
    Tensor w = part.data;
    if (e_.widen) {
      w = place(e_.weight, op_.cache.dtype, {heads * head_rows, s_.kv_rank});
      widen_part(stream_, w, part);
    }
    library_product(stream_, place(e_.products, op_.cache.dtype, {e_.positions, heads * head_rows}),
                    place(e_.latents, op_.cache.dtype, {e_.positions, s_.kv_rank}), w,
                    memory_ + e_.workspace);
    launch(stream_.queue(), cache_kernel, dim3(static_cast<unsigned>(e_.positions)), dim3(kThreads), 0,
           CacheArguments{.k = at<uint4>(e_.k),
                          .v = at<uint4>(e_.v),
                          .products = at<uint4>(e_.products),
                          .keys_pe = at<uint4>(e_.keys_pe),
                          .heads = static_cast<int>(heads),
                          .units = static_cast<int>(e_.dim / 8),
                          .nope_units = s_.nope_dim / 8,
                          .pe_units = s_.rope_dim / 8,
                          .v_units = s_.v_dim / 8});
  }

  void attend(int64_t head, int64_t heads) {
    const AttentionSequence& s = e_.sequence;
    const int64_t lanes = heads * e_.dim;
    const Tensor op_q = op_.q.rows(s.first_row, s.rows).cols(head * s_.query_dim(), heads * s_.query_dim());
    const Tensor op_out = op_.out.rows(s.first_row, s.rows).cols(head * s_.v_dim, heads * s_.v_dim);
    const Tensor q = e_.wide_q ? place(e_.q, DType::f32, {s.rows, lanes}) : op_q;
    const Tensor out = e_.wide_out ? place(e_.out, DType::f32, {s.rows, lanes}) : op_out;
    if (e_.wide_q) fit_heads(stream_, q, e_.dim, op_q, s_.query_dim(), heads);
    const AttentionBatch batch{{at<AttentionSequence>(e_.batch), 1}, kBlock, s.rows};
    const auto count = static_cast<int32_t>(heads);
    // Its tensor cores need no scratch of their own.
    ops::run(stream_,
             PagedAttention{
                 .out = out,
                 .q = q,
                 .k_cache = place(e_.k, op_.cache.dtype, {e_.positions / kBlock, heads, kBlock, e_.dim}),
                 .v_cache = place(e_.v, op_.cache.dtype, {e_.positions / kBlock, heads, kBlock, e_.dim}),
                 .batch = &batch,
                 .heads = count,
                 .kv_heads = count,
                 .head_dim = static_cast<int32_t>(e_.dim),
                 .scale = op_.scale});
    stream_.queue().native();  // starts it, before others take the scratch that it reads
    if (e_.wide_out) fit_heads(stream_, op_out, s_.v_dim, out, e_.dim, heads);
  }

  Stream& stream_;
  const Expansion& e_;
  const LatentAttention& op_;
  const LatentShape& s_;
  std::byte* memory_;
};

void absorb(Stream& stream, const LatentAttention& op, int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (refuse_latent_mma(stream, op) == nullptr) return latent_mma_rows(stream, op, begin, end);
  latent_plain_rows(stream, op, begin, end);
}

}  // namespace

const char* refuse_latent_expanded(const Stream& stream, const LatentAttention& op) {
  const LatentShape& s = op.shape;
  const WeightPart& w = op.kv_b.parts[0];
  if (op.precision != Precision::fast) return "rounds keys and values";
  if (stream.queue().capability() < 90) return "needs 204 KiB of shared memory in a block";
  if (op.cache.dtype != DType::bf16 && op.cache.dtype != DType::f16) return "for caches of bf16 and f16";
  if (std::max(s.query_dim(), s.v_dim) > kMostHeadLanes) return "for heads of up to 256 lanes";
  if (s.nope_dim % 8 != 0 || s.rope_dim % 8 != 0 || s.v_dim % 8 != 0 || s.kv_rank % 8 != 0)
    return "lanes are not in eights";
  if (!aligned16(op.cache.data) || op.cache.strides[0] % 8 != 0 || !aligned16(op.q.data) ||
      op.q.strides[0] % 4 != 0 || !aligned16(op.out.data) || op.out.strides[0] % 4 != 0)
    return "rows are not aligned";
  if (!aligned16(w.data.data) || (w.data.dtype == op.cache.dtype && w.data.strides[0] % 8 != 0))
    return "rows of the weight are not aligned";
  if (const char* reason = refuse_library()) return reason;
  if (Sequences(*op.batch).one_row_each || op.out.dim(0) < kLeastRows) return "for prompts";
  if (stream.queue().planning()) return nullptr;  // there may be a sequence for it
  for (const AttentionSequence& sequence : op.batch->known) {
    if (Expansion(op, sequence).pays()) return nullptr;
  }
  return op.batch->known.empty() ? "the host does not know the sequences" : "the absorbed form is less work";
}

void latent_expanded(Stream& stream, const LatentAttention& op) {
  if (stream.queue().planning()) {
    (void)stream.queue().scratch(Expansion::most_bytes(op));
    return absorb(stream, op, 0, op.out.dim(0));
  }
  int64_t done = 0;
  for (const AttentionSequence& sequence : op.batch->known) {
    const Expansion e(op, sequence);
    if (!e.pays()) continue;
    absorb(stream, op, done, sequence.first_row);
    Expanded(stream, e).run();
    done = sequence.first_row + sequence.rows;
  }
  absorb(stream, op, done, op.out.dim(0));
}

}  // namespace atom::ops::gpu_kernels
