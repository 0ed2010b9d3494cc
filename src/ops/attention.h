// Grouped-query attention over a paged key/value cache.
#pragma once
#include "ops/op.h"
#include "ops/rope.h"

namespace atom::ops {

// One sequence's rows in a step and where its cache lies. Token at position p of the sequence is held in slot
// p % block_size of block block_table[p / block_size]. On a GPU a sequence of one row may have a null table:
// the row pads a recorded step, stores nothing and gives zeros.
struct AttentionSequence {
  int32_t first_row = 0;  // its rows in the flat token list
  int32_t rows = 0;
  int32_t context = 0;  // tokens before the first of these rows; row i has position context + i
  const int32_t* block_table = nullptr;  // entries that lie wholly before a window may be -1
};

struct AttentionBatch {
  std::span<const AttentionSequence> sequences;  // ordered by first_row, covering all rows
  int32_t block_size = 0;
  int32_t tokens = 0;
  // On a GPU, if the host knows them when it enqueues the step: the same sequences where it can read them,
  // with tables on the device. Recorded steps have none.
  std::span<const AttentionSequence> known = {};
};

// A cache of E4M3 holds keys and values divided by these, saturated to the type's range; other caches hold
// them as they are, and the scales are 1.
struct KvScales {
  float k = 1, v = 1;
};

// For every row: optional RMS norm of each q and k head, rope on the first rotary_dim lanes of q and k, then
// k and v go to their slots. q is updated in place.
struct QkNormRopeStore {
  Tensor qkv;             // [tokens, (heads + 2 * kv_heads) * head_dim] f32: q heads, k heads, v heads
  Tensor k_cache;         // [blocks, kv_heads, block_size, head_dim] f32, bf16, f16 or f8e4m3
  Tensor v_cache;         // the same
  Tensor q_norm, k_norm;  // null or [head_dim] f32
  const AttentionBatch* batch = nullptr;
  RopeAngles rope;  // null tensors: no rotation
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  int32_t rotary_dim = 0;         // lanes beyond pass through
  bool rope_interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + rotary_dim/2)
  float norm_eps = 0;
  float norm_weight_offset = 0;  // 1 for the (1 + w) kind
  KvScales scales;
};

// out[row, h] = sum over visible keys of softmax(scale * q·k) v. Row at position p sees keys in (p - window,
// p] (window 0: all up to p). A sink adds exp(sink[h]) to the denominator only.
struct PagedAttention {
  Tensor out;  // [tokens, heads * head_dim] f32
  Tensor q;    // [tokens, >= heads * head_dim] f32 (the qkv rows)
  Tensor k_cache, v_cache;
  Tensor sinks;  // null or [heads] f32
  const AttentionBatch* batch = nullptr;
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  int32_t window = 0;
  float scale = 0;
  KvScales scales;
};

// CHECKs that the sequences cover `tokens` rows in order and that every block exists that they write, or with
// `reads_context` also read, of `blocks`. Sequences on a GPU cannot be read here: whoever stages them answers
// for them.
void check_batch(const AttentionBatch* batch, int64_t tokens, int64_t blocks, bool reads_context,
                 int32_t window, Device device = {});

void check(const QkNormRopeStore& op);
void check(const PagedAttention& op);
inline Device device_of(const QkNormRopeStore& op) { return op.qkv.device; }
inline Device device_of(const PagedAttention& op) { return op.out.device; }

template <>
std::span<const Impl<QkNormRopeStore>> gpu_impls<QkNormRopeStore>();
template <>
std::span<const Impl<PagedAttention>> gpu_impls<PagedAttention>();

}  // namespace atom::ops
