// Latent attention: keys and values are linear images of one small vector per token, and only that vector is
// cached. An entry of the cache is [c | k_pe]: the normalised latent and one rotated key for all heads.
#pragma once
#include "ops/attention.h"
#include "ops/linear.h"

namespace atom::ops {

struct LatentShape {
  int32_t heads = 0;
  int32_t nope_dim = 0;  // lanes of a query and key head without position
  int32_t rope_dim = 0;  // and with
  int32_t v_dim = 0;     // lanes of a value head; may exceed nope_dim
  int32_t kv_rank = 0;   // of the latent
  int32_t query_dim() const { return nope_dim + rope_dim; }
  int32_t entry_dim() const { return kv_rank + rope_dim; }
};

// For every row: rope on the last rope_dim lanes of each query head, in place; RMS norm of the latent, rope
// on the key, and both go to the row's slot.
struct LatentStore {
  Tensor q;      // [tokens, heads * query_dim] f32
  Tensor kv;     // [tokens, entry_dim] f32, rows may be strided: latent | key
  Tensor norm;   // [kv_rank] f32
  Tensor cache;  // [blocks, 1, block_size, entry_dim] f32, bf16 or f16
  const AttentionBatch* batch = nullptr;
  RopeAngles rope;
  LatentShape shape;
  bool rope_interleaved = true;
  float norm_eps = 0;
};

// Head h has key W_k c + k_pe and value W_v c, where W_k and W_v are rows of kv_b. Row at position p sees
// positions 0..p, or of these the ones in its row of `selected` once there are more than it can hold.
//   expanded: k_h(u) = [W_k c_u | k_pe_u], v_h(u) = W_v c_u, then ordinary attention
//   absorbed: score = (W_kᵀ q_nope)·c_u + q_pe·k_pe_u, out = W_v (sum of p_u c_u); the cache is read once for
//   all heads
struct LatentAttention {
  Tensor out;       // [tokens, heads * v_dim] f32
  Tensor q;         // [tokens, heads * query_dim] f32, as LatentStore leaves it
  Weight kv_b;      // [heads * (nope_dim + v_dim), kv_rank]: per head W_k, then W_v; one part
  Tensor cache;     // as in LatentStore
  Tensor selected;  // null, or [tokens, k] i32: ascending positions; rows at positions below k are not read
  const AttentionBatch* batch = nullptr;
  LatentShape shape;
  float scale = 0;
  Precision precision = Precision::exact;
};

// Head by head x_h · W_h, or x_h · W_hᵀ, where W_h are the rows from h * head_rows + first on.
struct HeadProject {
  Tensor out;  // [tokens, *] f32: head h from column h * out_stride on; rows may be strided
  Tensor x;    // [tokens, *] f32: head h from column h * x_stride on; rows may be strided
  Weight w;    // one part
  int32_t heads = 0, head_rows = 0, first = 0, rows = 0;
  int64_t x_stride = 0, out_stride = 0;
  bool transposed = false;
  Precision precision = Precision::exact;
};

void check(const LatentStore& op);
void check(const LatentAttention& op);
void check(const HeadProject& op);
inline Device device_of(const LatentStore& op) { return op.q.device; }
inline Device device_of(const LatentAttention& op) { return op.out.device; }
inline Device device_of(const HeadProject& op) { return op.out.device; }

template <>
std::span<const Impl<LatentStore>> gpu_impls<LatentStore>();
template <>
std::span<const Impl<LatentAttention>> gpu_impls<LatentAttention>();
template <>
std::span<const Impl<HeadProject>> gpu_impls<HeadProject>();

}  // namespace atom::ops
