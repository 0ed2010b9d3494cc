// Attention of prompts over a cache of E4M3 on Hopper: what the step's sequences see of it becomes a cache of
// f16 in scratch, exactly, which the kernel for caches of 16 bits then reads. Three bytes are moved for each
// of the cache, against work that rises with the rows that see it. Grid: (blocks of all sequences, keys and
// values).
#include "ops/cuda/cache_mma.h"
#include "ops/cuda/prompt_tiles.h"
#include "ops/gpu/deferred.h"
#include "ops/gpu/kernels.h"
#include "ops/gpu/prompt_kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 256;

struct WidenArguments {
  const unsigned char* from[2];  // keys, values
  uint4* to[2];
  int64_t from_stride[2];  // bytes between blocks
  Sequences sequences;
  AttentionSequence* widened;  // the same sequences with other tables
  int32_t* table;              // of all, one after the other
  int block_size, window;      // 0: none
  int pieces;                  // 16 bytes each, of a block
};

__device__ int blocks_of(const AttentionSequence& s, int block_size) {
  return s.rows == 0 ? 0 : (s.context + s.rows + block_size - 1) / block_size;
}

__global__ void __launch_bounds__(kThreads) widen_kernel(const __grid_constant__ WidenArguments a) {
  let_next_start();
  wait_for_previous();
  const int block = static_cast<int>(blockIdx.x), which = blockIdx.y;
  // The sequence that has this block, which every warp looks for.
  PieceHolder at;
  const auto pieces_of = [&](const AttentionSequence& s) { return blocks_of(s, a.block_size); };
  if (!find_holder(a.sequences, block, pieces_of, at)) return;
  const int sequence = at.first + at.lane;
  const int first = block - (at.index - __shfl_sync(~0u, at.end - at.mine, at.lane));
  AttentionSequence s = a.sequences.data[sequence];
  if (which == 0 && threadIdx.x == 0) {
    a.table[block] = block;
    if (block == first) {
      s.block_table = a.table + first;
      a.widened[sequence] = s;
    }
  }
  if (block == 0 && which == 0) {
    for (int i = threadIdx.x; i < a.sequences.count; i += kThreads) {
      if (a.sequences.data[i].rows == 0) a.widened[i] = a.sequences.data[i];
    }
  }
  // Before the window of its first row a table has no entries.
  if (a.window > 0 && block - first < max(0, s.context - a.window + 1) / a.block_size) return;
  const int64_t entry = a.sequences.data[sequence].block_table[block - first];
  const auto* from = reinterpret_cast<const uint4*>(a.from[which] + entry * a.from_stride[which]);
  uint4* to = a.to[which] + int64_t{block} * a.pieces * 2;
#pragma unroll 4
  for (int i = threadIdx.x; i < a.pieces; i += kThreads) widen_to_halves(load_once(from + i), to + 2 * i);
}

// Keys that a step of so many rows may see and still be widened: a bound on scratch.
int64_t most_keys(int64_t rows) { return 2 * rows; }

struct Scratch {
  int64_t cache, table, sequences, all;  // of one of two caches; then where things lie
};
Scratch scratch_for(const PagedAttention& op) {
  const int64_t rows = op.out.dim(0), blocks = most_keys(rows) / op.batch->block_size;
  Scratch s{};
  s.cache = aligned(most_keys(rows) * op.kv_heads * op.head_dim * 2);
  s.table = 2 * s.cache;
  s.sequences = s.table + aligned(blocks * static_cast<int64_t>(sizeof(int32_t)));
  s.all = s.sequences + aligned(rows * static_cast<int64_t>(sizeof(AttentionSequence)));
  return s;
}

int64_t known_blocks(const AttentionBatch& batch) {
  int64_t blocks = 0;
  for (const AttentionSequence& s : batch.known) {
    if (s.rows > 0) blocks += ceil_div(int64_t{s.context} + s.rows, batch.block_size);
  }
  return blocks;
}

// The op on the widened cache.
PagedAttention widened(const PagedAttention& op, AttentionBatch& batch, std::byte* scratch, const Scratch& at,
                       int64_t blocks) {
  PagedAttention w = op;
  w.k_cache = make_tensor(scratch, DType::f16, {blocks, op.kv_heads, op.batch->block_size, op.head_dim},
                          op.out.device);
  w.v_cache = make_tensor(scratch + at.cache, DType::f16,
                          {blocks, op.kv_heads, op.batch->block_size, op.head_dim}, op.out.device);
  batch = *op.batch;
  batch.sequences = {reinterpret_cast<const AttentionSequence*>(scratch + at.sequences),
                     op.batch->sequences.size()};
  w.batch = &batch;
  return w;
}

}  // namespace

const char* refuse_widened_prompt(const Stream& stream, const PagedAttention& op) {
  constexpr int64_t kFewestRows = 256;
  if (op.k_cache.dtype != DType::f8e4m3) return "for caches of E4M3";
  if (op.out.dim(0) < kFewestRows) return "for many rows";
  for (const Tensor* cache : {&op.k_cache, &op.v_cache}) {
    if (cache->strides[1] != int64_t{op.batch->block_size} * op.head_dim || cache->strides[0] % 16 != 0 ||
        !aligned16(cache->data)) {
      return "heads of a block of the cache do not follow each other";
    }
  }
  AttentionBatch batch = *op.batch;
  PagedAttention plain = op;
  plain.k_cache = plain.v_cache = make_tensor(op.k_cache.data, DType::f16,
                                              {1, op.kv_heads, batch.block_size, op.head_dim}, op.out.device);
  if (const char* refusal = refuse_prompt(stream, plain)) return refusal;
  if (stream.queue().planning()) return nullptr;
  if (batch.known.size() != batch.sequences.size()) return "the host does not know the sequences";
  if (static_cast<int64_t>(batch.known.size()) > op.out.dim(0)) return "sequences without rows";
  return known_blocks(batch) * batch.block_size > most_keys(op.out.dim(0)) ? "sequences are long" : nullptr;
}

int64_t widened_scratch(const PagedAttention& op) { return scratch_for(op).all; }

void widened_prompt(Stream& stream, const PagedAttention& op) {
  gpu::Queue& queue = stream.queue();
  const int64_t bytes = widened_scratch(op);
  if (queue.planning()) prefill_attention(stream, op);  // it may be needed, too
  queue.scratch(bytes);
  queue.defer(std::make_unique<DeferredPrompt>(op, start_widened_prompt, bytes));
}

void start_widened_prompt(Stream& stream, const PagedAttention& op) {
  gpu::Queue& queue = stream.queue();
  if (queue.planning()) return;
  const Scratch at = scratch_for(op);
  auto* scratch = static_cast<std::byte*>(queue.scratch(at.all));
  const int64_t blocks = known_blocks(*op.batch);
  if (blocks == 0) return;
  AttentionBatch batch;
  const PagedAttention w = widened(op, batch, scratch, at, blocks);
  const WidenArguments a{
      .from = {static_cast<const unsigned char*>(op.k_cache.data),
               static_cast<const unsigned char*>(op.v_cache.data)},
      .to = {static_cast<uint4*>(w.k_cache.data), static_cast<uint4*>(w.v_cache.data)},
      .from_stride = {op.k_cache.strides[0], op.v_cache.strides[0]},
      .sequences = Sequences(*op.batch),
      .widened = reinterpret_cast<AttentionSequence*>(scratch + at.sequences),
      .table = reinterpret_cast<int32_t*>(scratch + at.table),
      .block_size = op.batch->block_size,
      .window = op.window,
      .pieces = static_cast<int>(int64_t{op.kv_heads} * op.batch->block_size * op.head_dim / 16)};
  launch(queue, widen_kernel, dim3(static_cast<unsigned>(blocks), 2), dim3(kThreads), 0, a);
  start_prompt(stream, w);
}

}  // namespace atom::ops::gpu_kernels
