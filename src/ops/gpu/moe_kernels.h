// GPU implementations of mixtures of experts, for lists_moe.cc. As kernels.h says of its own.
#pragma once
#include "ops/moe_block.h"

namespace atom::ops::gpu_kernels {

void route_experts(Stream& stream, const RouteExperts& op);
void sigmoid_scale(Stream& stream, const SigmoidScale& op);

// Any storage that single elements are read of, any number of tokens, in float32: every use of an expert
// reads its rows.
const char* refuse_experts_by_rows(const Stream& stream, const MoeExperts& op);
void experts_by_rows(Stream& stream, const MoeExperts& op);

// One token, on tensor cores: one kernel for gate and up, one for down and the weighted sum.
const char* refuse_row_experts(const Stream& stream, const MoeExperts& op);
void row_experts(Stream& stream, const MoeExperts& op);
// The whole mixture of one token: the router, and then the same two kernels with a shared expert as one more
// use. Gate and up of that are multiplied while the router still chooses.
const char* refuse_row_block(const Stream& stream, const MoeBlock& op);
void row_block(Stream& stream, const MoeBlock& op);
// Tensor cores, activations rounded to bf16. A few tokens: every use reads its expert; one kernel for gate
// and up, one for down and the weighted sum.
const char* refuse_few_experts(const Stream& stream, const MoeExperts& op);
void few_experts(Stream& stream, const MoeExperts& op);
// More tokens: uses are grouped by expert, so that an expert is read once for many.
const char* refuse_grouped_experts(const Stream& stream, const MoeExperts& op);
void grouped_experts(Stream& stream, const MoeExperts& op);
// The same on Hopper, by its copy engine and products of four warps.
const char* refuse_hopper_experts(const Stream& stream, const MoeExperts& op);
void hopper_experts(Stream& stream, const MoeExperts& op);
// The same of one token with MXFP4 in pieces: uses need no grouping.
const char* refuse_piece_row_experts(const Stream& stream, const MoeExperts& op);
void piece_row_experts(Stream& stream, const MoeExperts& op);

}  // namespace atom::ops::gpu_kernels
