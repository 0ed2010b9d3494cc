// GPU implementations of attention of prompts that lists.cc and entries of wider ops choose among. As
// kernels.h says of its own.
#pragma once
#include "ops/attention.h"

namespace atom::ops::gpu_kernels {

// prompt_attention at once; op.out may be bf16.
void start_prompt(Stream& stream, const PagedAttention& op);

// A cache of E4M3 widened in scratch, then as for one of f16.
const char* refuse_widened_prompt(const Stream& stream, const PagedAttention& op);
void widened_prompt(Stream& stream, const PagedAttention& op);
int64_t widened_scratch(const PagedAttention& op);  // bytes
// The same at once; op.out may be bf16.
void start_widened_prompt(Stream& stream, const PagedAttention& op);

}  // namespace atom::ops::gpu_kernels
