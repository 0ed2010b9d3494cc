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

// Rows that a product reads. A product that rounds them may take their work over and have them rounded at
// once.
struct DeferredRows : gpu::Queue::Deferred {
  DeferredRows(const Tensor& o, int64_t bytes) : out(o), scratch_bytes(bytes) {}
  // The rows go to `rounded`, of bf16 or f16, dense. `out` is written too if others may read it: never, but
  // for norms, where they may until it is `spent`.
  virtual void start_rounded(gpu::Queue& queue, const Tensor& rounded, bool spent) = 0;
  Tensor out;             // [rows, n] f32
  int64_t scratch_bytes;  // in use until the work is done
};

// The work that makes x, if it waits in the queue.
DeferredRows* waiting_rows(gpu::Queue& queue, const Tensor& x);

// x rounded to `dtype`, dense, in scratch behind `used` bytes, by whoever makes x if that waits. `spent`:
// nobody reads x itself any more.
struct RoundedRows {
  Tensor x;
  int64_t scratch_bytes;  // up to the end of x
  std::byte* behind;      // so many more as were asked for
};
RoundedRows round_in_scratch(Stream& stream, const Tensor& x, DType dtype, bool spent, int64_t used,
                             int64_t behind);

// A norm of several rows, after what it adds.
struct DeferredNorms : DeferredRows {
  // norm.add may be several parts, as DeferredShare leaves them.
  DeferredNorms(const AddRmsNorm& op, int64_t bytes) : DeferredRows(op.out, bytes), norm(op) {}
  void start(gpu::Queue& queue) override;
  void start_rounded(gpu::Queue& queue, const Tensor& rounded, bool spent) override;
  AddRmsNorm norm;
};

// silu(gate) * up of a product's sums, for many rows.
struct DeferredActivation : DeferredRows {
  DeferredActivation(const Tensor& o, const Tensor& b, int64_t bytes) : DeferredRows(o, bytes), both(b) {}
  void start(gpu::Queue& queue) override;
  void start_rounded(gpu::Queue& queue, const Tensor& rounded, bool spent) override;
  Tensor both;  // [rows, 2 * half], in scratch
};

// Attention of decodes.
struct DeferredAttend : DeferredRows {
  DeferredAttend(const Attend& o, int64_t bytes)
      : DeferredRows(o.attention.out, bytes), op(o), batch(*o.store.batch) {
    op.store.batch = op.attention.batch = &batch;
  }
  void start(gpu::Queue& queue) override;
  void start_rounded(gpu::Queue& queue, const Tensor& rounded, bool spent) override;
  Attend op;
  AttentionBatch batch;
};

// Attention of prompts by `attend`, which also writes bf16. `bytes` of scratch are its own; whoever has q or
// the cache in scratch starts it at once.
struct DeferredPrompt : DeferredRows {
  DeferredPrompt(const PagedAttention& o, void (*a)(Stream&, const PagedAttention&), int64_t bytes)
      : DeferredRows(o.out, bytes), op(o), batch(*o.batch), attend(a) {
    op.batch = &batch;
  }
  void start(gpu::Queue& queue) override;
  void start_rounded(gpu::Queue& queue, const Tensor& rounded, bool spent) override;
  PagedAttention op;
  AttentionBatch batch;
  void (*attend)(Stream&, const PagedAttention&);
};

// A product whose result may be a share of what a norm adds to the residual.
struct DeferredShare : gpu::Queue::Deferred {
  explicit DeferredShare(const Tensor& o) : out(o) {}
  // What is left to add: [parts * rows, n] f32, one part behind the other, or null; `scratch_bytes`: in use
  // until that is done.
  struct Rest {
    Tensor parts;
    int64_t scratch_bytes = 0;
  };
  // Starts the product for a norm that adds `out` to the residual; nobody else reads `out`.
  virtual Rest start_adding(gpu::Queue& queue, const Tensor& residual) = 0;
  Tensor out;  // [rows, n] f32
};

// The gate that scales the result of a product: if that waits in the queue it does so itself, and still
// waits.
bool scale_in_product(gpu::Queue& queue, const SigmoidScale& op);

}  // namespace atom::ops::gpu_kernels
