// Work on one row that its neighbours may do as well (gpu::Queue::Deferred).
#pragma once
#include "ops/norm.h"
#include "tensor/gpu.h"

namespace atom::ops::gpu_kernels {

// A norm of one row with nothing to add. A product that reads `norm.out` may take it over; it then writes
// `norm.out` too, for others.
struct DeferredNorm : gpu::Queue::Deferred {
  explicit DeferredNorm(const AddRmsNorm& op) : norm(op) {}
  void start(gpu::Queue& queue) override;
  AddRmsNorm norm;
};

// If the queue's deferred work is a product whose result is `op.add`, one row, starts it so that it adds to
// the residual instead, and says so.
bool add_in_product(gpu::Queue& queue, const AddRmsNorm& op);

}  // namespace atom::ops::gpu_kernels
