// Paged attention on the CPU: the driver that deals jobs to the team, and the reference.
#pragma once
#include "ops/attention.h"
#include "ops/cpu/attention_job.h"

namespace atom::ops::cpu {

struct AttentionKernel {
  void (*attend)(const AttentionJob& job);
  int32_t max_vectors;  // query vectors that one job may hold (more only where a single row has more heads)
};

void paged_attention(Stream& stream, const PagedAttention& op, const AttentionKernel& kernel);
void paged_attention_ref(Stream& stream, const PagedAttention& op);

}  // namespace atom::ops::cpu
