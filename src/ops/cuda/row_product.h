// Products of one row of x with matrices in device memory: what the kernels of row_kernel.h are given.
#pragma once
#include "ops/gpu/experts.h"

namespace atom::ops::gpu_kernels {

// One expert (that of an ordinary product: number 0), or `uses` of them: `routing`'s, and before those the
// shared expert's if there is one.
//   v = w x (+ bias);  gated: act(w x + bias, up x + up_bias)
//   each:  gated; out[use] = weight(use) * v of the use's expert, with the same x for all
//   sum:   not gated; out = sum over uses of w x[use] + weight(use) * bias; weights are in x already, but
//          for that of the shared expert
struct RowProduct {
  enum class Uses : uint8_t { one, each, sum };
  // A matrix of the shared expert, in all but its place like those of the others.
  struct Shared {
    const std::byte *data = nullptr, *scales = nullptr;
  };

  DType type = DType::bf16;  // of the matrices
  ExpertMatrix w, up;        // `up` if gated
  ExpertBias bias, up_bias;
  int rows = 0, cols = 0;  // of w
  bool gated = false;
  Experts experts = {.count = 1};  // activation, and which experts are here
  Uses kind = Uses::one;
  Routing routing = {};  // of one token; unused for one
  Shared shared_w = {}, shared_up = {};
  // each: the kernel before makes the routing and has let this one start when x was there.
  bool early = false;

  const float* x = nullptr;  // [cols]; sum: [uses, cols]
  // Folded into the product, or null: x is multiplied by (offset + norm_weight) / rms(x), and the result is
  // written to `normed` as well.
  const float* norm_weight = nullptr;
  float norm_eps = 0, norm_offset = 0;
  float* normed = nullptr;

  float* out = nullptr;  // [rows]; each: [uses, rows]
  // Or null: its sigmoid multiplies the result (one) or x of the shared expert (sum).
  const float* gate_logit = nullptr;
  const float* adds[2] = {};  // [rows] or null: what is added then

  __host__ __device__ int shared() const { return shared_w.data == nullptr ? 0 : 1; }
};

// Why a matrix cannot be multiplied with; null: it can.
const char* refuse_row_product(const Stream& stream, const WeightPart& part);
// Starts the product.
void row_product(gpu::Queue& queue, const RowProduct& product);
// The same, unless what comes next can be left to it: the gate that scales its result (scale_in_product), the
// norm that adds it to the residual (DeferredShare).
void defer_product(gpu::Queue& queue, const RowProduct& product);

}  // namespace atom::ops::gpu_kernels
