// Rows that wait in the queue to be rounded for the product that reads them.
#include "ops/gpu/deferred.h"

#include <algorithm>

#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {

DeferredRows* waiting_rows(gpu::Queue& queue, const Tensor& x) {
  auto* waiting = dynamic_cast<DeferredRows*>(queue.deferred());
  return waiting != nullptr && waiting->out.data == x.data && waiting->out.dims == x.dims ? waiting : nullptr;
}

RoundedRows round_in_scratch(Stream& stream, const Tensor& x, DType dtype, bool spent, int64_t used,
                             int64_t behind) {
  gpu::Queue& queue = stream.queue();
  DeferredRows* waiting = waiting_rows(queue, x);
  if (waiting != nullptr) used = std::max(used, aligned(waiting->scratch_bytes));
  const int64_t end = used + aligned(dtype_bytes(dtype, x.dim(0) * x.dim(1)));
  auto* scratch = static_cast<std::byte*>(queue.scratch(end + behind));
  const RoundedRows rounded{make_tensor(scratch + used, dtype, {x.dim(0), x.dim(1)}, x.device), end,
                            scratch + end};
  if (waiting != nullptr) {
    const auto taken = queue.take_over();
    waiting->start_rounded(queue, rounded.x, spent);
  } else {
    round_rows(stream, rounded.x, x);
  }
  return rounded;
}

}  // namespace atom::ops::gpu_kernels
