// Work that its neighbours may do as well (gpu::Queue::Deferred).
#pragma once
#include "ops/attend.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "tensor/gpu.h"

namespace atom::ops::gpu_kernels {

// A norm of one row with nothing to add. A product that reads `norm.out` may take it over; it then writes
// `norm.out` too, for others.
struct DeferredNorm : gpu::Queue::Deferred {
  explicit DeferredNorm(const AddRmsNorm& op) : norm(op) {}
  void start(gpu::Queue& queue) override;
  bool makes(const float* x) const;  // and a product can read what it reads
  AddRmsNorm norm;
};

// x becomes what is to be normalised.
template <class Product>
void read_before_norm(const AddRmsNorm& norm, Product& product) {
  product.x = norm.residual.as<float>();
  product.norm_weight = norm.weight.as<float>();
  product.norm_eps = norm.eps;
  product.norm_offset = norm.weight_offset;
  product.normed = norm.out.as<float>();
}

// Lets a product do the norm that makes its x, if that has not been started: x becomes what is to be
// normalised.
template <class Product>
void take_norm(gpu::Queue& queue, Product& product) {
  const auto* deferred = dynamic_cast<const DeferredNorm*>(queue.deferred());
  if (deferred == nullptr || !deferred->makes(product.x)) return;
  read_before_norm(deferred->norm, product);
  queue.take_over();
}

// A norm of several rows, after what it adds. A product that rounds `norm.out` may take it over and have it
// rounded at once (norm_and_round); `norm.out` is written in any case.
struct DeferredNorms : gpu::Queue::Deferred {
  explicit DeferredNorms(const AddRmsNorm& op) : norm(op) {}
  void start(gpu::Queue& queue) override;
  AddRmsNorm norm;
};

// silu(gate) * up of a product's sums, for many rows. A product that reads `out` may take it over and have
// the result rounded at once; nobody else reads `out`.
struct DeferredActivation : gpu::Queue::Deferred {
  DeferredActivation(const Tensor& o, const Tensor& b, int64_t bytes)
      : out(o), both(b), scratch_bytes(bytes) {}
  void start(gpu::Queue& queue) override;
  Tensor out;             // [rows, half] f32
  Tensor both;            // [rows, 2 * half], in scratch
  int64_t scratch_bytes;  // that `both` takes
};

// Attention of decodes. A product that rounds `op.attention.out` may take it over and have it rounded at once
// (attend_and_round); nobody else reads `op.attention.out`.
struct DeferredAttend : gpu::Queue::Deferred {
  DeferredAttend(const Attend& o, int64_t bytes) : op(o), batch(*o.store.batch), scratch_bytes(bytes) {
    op.store.batch = op.attention.batch = &batch;
  }
  void start(gpu::Queue& queue) override;
  Attend op;
  AttentionBatch batch;
  int64_t scratch_bytes;  // that attention takes itself
};

// If the queue's deferred work is a product whose result is `op.add`, one row, starts it so that it adds to
// the residual instead, and says so.
bool add_in_product(gpu::Queue& queue, const AddRmsNorm& op);
// The same for the gate that scales its result: the product stays deferred.
bool scale_in_product(gpu::Queue& queue, const SigmoidScale& op);

}  // namespace atom::ops::gpu_kernels
