// The GPU implementations that the lists in lists.cc refer to. Each launches on the stream's queue and
// returns; all memory is the op's or the queue's scratch. `refuse_*` return the reason or null.
#pragma once
#include "ops/argmax.h"
#include "ops/attention.h"
#include "ops/draw.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/spread_norm.h"

namespace atom::ops::gpu_kernels {

// Bytes of a part of scratch behind which another begins.
inline int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

void add_rms_norm(Stream& stream, const AddRmsNorm& op);
// Rows of several ranks that are summed, added and normalised by one kernel: as many as decodes have.
const char* refuse_reduced_norm(const Stream& stream, const AddRmsNorm& op);
void reduced_norm(Stream& stream, const AddRmsNorm& op);
void rms_norm(Stream& stream, const RmsNorm& op);
void spread_rms_norm(Stream& stream, const SpreadRmsNorm& op);
void embed(Stream& stream, const Embed& op);
void gather_rows(Stream& stream, const GatherRows& op);
void compute_rope_angles(Stream& stream, const ComputeRopeAngles& op);
void qk_norm_rope_store(Stream& stream, const QkNormRopeStore& op);
void paged_attention(Stream& stream, const PagedAttention& op);
// Prompt rows on tensor cores.
const char* refuse_prefill(const Stream& stream, const PagedAttention& op);
void prefill_attention(Stream& stream, const PagedAttention& op);
// The same on Hopper.
const char* refuse_prompt(const Stream& stream, const PagedAttention& op);
void prompt_attention(Stream& stream, const PagedAttention& op);

void argmax(Stream& stream, const ArgMax& op);
void draw_tokens(Stream& stream, const DrawTokens& op);
void take_chosen(Stream& stream, const TakeChosen& op);

// One row on tensor cores, with the norm before it and the residual's add after it.
const char* refuse_row_linear(const Stream& stream, const Linear& op);
void row_linear(Stream& stream, const Linear& op);
const char* refuse_row_gated(const Stream& stream, const GatedUp& op);
void row_gated(Stream& stream, const GatedUp& op);

// Several rows and a small matrix of bf16, exact on tensor cores.
const char* refuse_split_linear(const Stream& stream, const Linear& op);
void split_linear(Stream& stream, const Linear& op);

// Few rows: every weight is read once from memory, products in float32.
const char* refuse_matvec(const Stream& stream, const Linear& op);
void matvec(Stream& stream, const Linear& op);
const char* refuse_gated_matvec(const Stream& stream, const GatedUp& op);
void gated_matvec(Stream& stream, const GatedUp& op);

// Any shape and storage: tiles in float32. Weights with scales are widened in scratch first.
void linear_tiled(Stream& stream, const Linear& op);
// Linear into scratch, then the activation.
void gated_up_composed(Stream& stream, const GatedUp& op);

// Activations rounded to the weight's type, the vendor's matrix product.
const char* refuse_library_gemm(const Stream& stream, const Linear& op);
void library_gemm(Stream& stream, const Linear& op);
// Exact: many rows as sums of three bf16, each multiplied with bf16 weights.
const char* refuse_split_gemm(const Stream& stream, const Linear& op);
void split_gemm(Stream& stream, const Linear& op);
const char* refuse_library_gated(const Stream& stream, const GatedUp& op);
void library_gated(Stream& stream, const GatedUp& op);
// The same for weights with scales: widened to bf16 in scratch first.
const char* refuse_widened_gemm(const Stream& stream, const Linear& op);
void widened_gemm(Stream& stream, const Linear& op);
const char* refuse_widened_gated(const Stream& stream, const GatedUp& op);
void widened_gated(Stream& stream, const GatedUp& op);

// Weights with scales on tensor cores, for up to a few tiles of rows: read packed, widened in registers.
const char* refuse_packed_linear(const Stream& stream, const Linear& op);
void packed_linear(Stream& stream, const Linear& op);
const char* refuse_packed_gated(const Stream& stream, const GatedUp& op);
void packed_gated(Stream& stream, const GatedUp& op);

// Stored weights on Hopper, for several rows.
const char* refuse_grouped_linear(const Stream& stream, const Linear& op);
void grouped_linear(Stream& stream, const Linear& op);
const char* refuse_grouped_gated(const Stream& stream, const GatedUp& op);
void grouped_gated(Stream& stream, const GatedUp& op);

// The vendor's product of dense rows that have one narrow type already, x · wᵀ, rounded to it; `workspace` is
// scratch of so many bytes.
constexpr int64_t kLibraryWorkspaceBytes = int64_t{32}
                                           << 20;  // what the library's kernels for Hopper ask for
const char* refuse_library();
void library_product(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& w, void* workspace);

// out[t, i] = silu(both[t, i]) * both[t, half + i].
void silu_mul(Stream& stream, const Tensor& out, const Tensor& both);
// out = the part as plain numbers of `out.dtype`, dense rows that begin at 16 bytes.
void widen_part(Stream& stream, const Tensor& out, const WeightPart& part);
// x rounded to `out.dtype` (bf16 or f16), dense rows.
void round_rows(Stream& stream, const Tensor& out, const Tensor& x);
// x as the sum of three bf16: out is [3, tokens, cols], dense.
void split_rows(Stream& stream, const Tensor& out, const Tensor& x);

}  // namespace atom::ops::gpu_kernels
