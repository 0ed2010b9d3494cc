// The GPU implementations of latent attention and of the indexer. As in kernels.h: each launches on the
// stream's queue and returns.
#pragma once
#include "ops/indexer.h"
#include "ops/latent_attention.h"

namespace atom::ops::gpu_kernels {

void latent_store(Stream& stream, const LatentStore& op);
void index_store(Stream& stream, const IndexStore& op);

// Few rows: every weight is read once.
const char* refuse_head_rows(const Stream& stream, const HeadProject& op);
void head_project_rows(Stream& stream, const HeadProject& op);
// Many rows on tensor cores, activations rounded to bf16.
const char* refuse_head_mma(const Stream& stream, const HeadProject& op);
void head_project_mma(Stream& stream, const HeadProject& op);
// Any shape: tiles in float32.
void head_project_tiled(Stream& stream, const HeadProject& op);

// The part of absorbed latent attention that reads the cache, for some rows of the op.
struct LatentRows {
  const LatentAttention& op;
  int64_t first = 0, count = 0;  // of the op's rows
  float* q;                      // [count, heads, kv_rank]: W_kᵀ q_nope
  float* out;                    // [count, heads, kv_rank]: the sum of p_u c_u
  std::byte* scratch;            // of as many bytes as the implementation asked for
};
// One implementation: how much scratch it needs for `count` rows, and what it launches.
struct LatentCore {
  int64_t (*scratch_bytes)(const Stream& stream, const LatentAttention& op, int64_t count);
  void (*run)(Stream& stream, const LatentRows& rows);
};
// The op, for rows from `begin` to `end`, as: project queries, a core, project sums. Rows go in runs that
// bound the scratch. The projection lets the core start when the kernels before have ended, so that all but
// `q` may be read before the core waits.
void latent_absorbed(Stream& stream, const LatentAttention& op, const LatentCore& core, int64_t begin,
                     int64_t end);

// Prompts that the host knows: keys and values are written out, and attention is that of narrower heads. All
// other rows of the op by the entries below.
const char* refuse_latent_expanded(const Stream& stream, const LatentAttention& op);
void latent_expanded(Stream& stream, const LatentAttention& op);

// Tensor cores: entries of 512 + 64 lanes in bf16 or f16.
const char* refuse_latent_mma(const Stream& stream, const LatentAttention& op);
void latent_attention_mma(Stream& stream, const LatentAttention& op);
void latent_mma_rows(Stream& stream, const LatentAttention& op, int64_t begin, int64_t end);
// Any shape and type, in float32.
void latent_attention_plain(Stream& stream, const LatentAttention& op);
void latent_plain_rows(Stream& stream, const LatentAttention& op, int64_t begin, int64_t end);

// Tensor cores: keys of 128 lanes in bf16 or f16.
const char* refuse_index_mma(const Stream& stream, const IndexSelect& op);
void index_select_mma(Stream& stream, const IndexSelect& op);
void index_select_plain(Stream& stream, const IndexSelect& op);

}  // namespace atom::ops::gpu_kernels
