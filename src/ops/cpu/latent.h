// Latent attention on the CPU: what fills its cache, its two forms, and the reference.
#pragma once
#include "ops/cpu/norm_rows.h"
#include "ops/cpu/rope_head.h"
#include "ops/latent_attention.h"

namespace atom::ops::cpu {

struct StoreKernels {
  NormRow norm;
  TransformHead transform;
  StoreKv store;
};

void latent_store(Stream& stream, const LatentStore& op, const StoreKernels& kernels);

const char* refuse_latent_absorbed(const Stream& stream, const LatentAttention& op);
void latent_absorbed(Stream& stream, const LatentAttention& op);
// The expanded form for the sequences where it is the cheaper one, the absorbed form for the others. Refuses
// where it is for none.
const char* refuse_latent_expanded(const Stream& stream, const LatentAttention& op);
void latent_expanded(Stream& stream, const LatentAttention& op);
// The expanded form, in double.
void latent_attention_ref(Stream& stream, const LatentAttention& op);

// Calls fn(sequence, row within it, row in the batch) for the batch's rows from `begin` to `end`.
template <class Fn>
void for_rows(const AttentionBatch& batch, int64_t begin, int64_t end, Fn&& fn) {
  for (const AttentionSequence& s : batch.sequences) {
    const int64_t first = begin > s.first_row ? begin : s.first_row;
    const int64_t last = end < int64_t{s.first_row} + s.rows ? end : int64_t{s.first_row} + s.rows;
    for (int64_t t = first; t < last; ++t) fn(s, t - s.first_row, t);
  }
}

}  // namespace atom::ops::cpu
