// The indexer of sparse attention: small keys, one per token, against which each row scores its whole context
// to choose the few positions that attention then visits.
//
// Keys in E4M3 have a scale each, the smallest power of two by which they fit (e8m0_scale): a key is its
// codes times its scale. The scale of a key that is not finite is NaN, and so are its scores.
#pragma once
#include "ops/attention.h"

namespace atom::ops {

struct IndexShape {
  int32_t heads = 0, head_dim = 0;
  int32_t rope_dim = 0;  // the first lanes of a head; the rest have no position
};

// For every row: rope on each query head, in place; layer norm and rope of the key, which goes to its slot.
struct IndexStore {
  Tensor q;                       // [tokens, heads * head_dim] f32
  Tensor k;                       // [tokens, head_dim] f32, rows may be strided
  Tensor norm_weight, norm_bias;  // [head_dim] f32
  Tensor cache;                   // [blocks, 1, block_size, head_dim] f32, bf16, f16 or f8e4m3
  const AttentionBatch* batch = nullptr;
  RopeAngles rope;
  IndexShape shape;
  bool rope_interleaved = false;
  float norm_eps = 0;
  Tensor scales = {};  // of a cache of f8e4m3: [blocks, block_size] f32; else null
};

// score(t, u) = sum over heads of weights[t, h] * max(0, q_h · k_u), for u up to the row's position p.
// out[t] = the k best positions in ascending order, equal scores in favour of the lower position. Rows with
// p < k are left alone: they have nothing to choose. Memory, CPU: one float per position and row at work;
// GPU: at most about 3 k candidates for each row and split at work.
struct IndexSelect {
  Tensor out;      // [tokens, k] i32
  Tensor q;        // [tokens, heads * head_dim] f32, as IndexStore leaves it
  Tensor weights;  // [tokens, heads] f32, rows may be strided
  Tensor cache;
  const AttentionBatch* batch = nullptr;
  IndexShape shape;
  Tensor scales = {};  // as IndexStore has them
};

void check(const IndexStore& op);
void check(const IndexSelect& op);
inline Device device_of(const IndexStore& op) { return op.q.device; }
inline Device device_of(const IndexSelect& op) { return op.q.device; }

template <>
std::span<const Impl<IndexStore>> gpu_impls<IndexStore>();
template <>
std::span<const Impl<IndexSelect>> gpu_impls<IndexSelect>();

}  // namespace atom::ops
