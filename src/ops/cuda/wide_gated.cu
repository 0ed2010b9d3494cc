// Gate and up products of a full batch of decodes on Hopper: which of them the kernel takes. It waits for the
// product behind it, which may want the results rounded.
#include "ops/cuda/wide_gated_kernel.h"
#include "ops/gpu/deferred.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

using Cut = WideGatedCut<>;

int64_t blocks_of(const GatedUp& op) { return ceil_div(op.w.rows / 2, Cut::kHalf); }

// `x`: that of the op, rounded. `out`: float32 or bf16.
void start_wide(gpu::Queue& queue, const GatedUp& op, const Tensor& x, const Tensor& out) {
  if (queue.planning()) return;
  const Tensor& w = op.w.parts[0].data;
  const int64_t tokens = x.dim(0), cols = op.w.cols;
  const WideGatedArguments a{.w_map = map_tensor({.data = w.data,
                                                  .row_bytes = 2 * cols,
                                                  .rows = w.dim(0),
                                                  .row_stride = 2 * w.strides[0],
                                                  .tile_rows = Cut::kHalf,
                                                  .tile_bytes = Cut::kRowBytes}),
                             .x_map = map_tensor({.data = x.data,
                                                  .row_bytes = 2 * cols,
                                                  .rows = tokens,
                                                  .row_stride = 2 * cols,
                                                  .tile_rows = Cut::kRows / Cut::kCluster,
                                                  .tile_bytes = Cut::kRowBytes}),
                             .out = out.data,
                             .bias = op.bias.as<float>(),
                             .out_stride = out.strides[0],
                             .rows = static_cast<int>(tokens),
                             .half = static_cast<int>(op.w.rows / 2),
                             .stages = static_cast<int>(ceil_div(cols, Cut::kDepth))};
  const auto kernel = out.dtype == DType::bf16 ? wide_gated_kernel<Bf16, Cut> : wide_gated_kernel<float, Cut>;
  const auto blocks = static_cast<unsigned>(ceil_div(blocks_of(op), Cut::kCluster) * Cut::kCluster);
  launch_clusters(queue, kernel, dim3(blocks), dim3(Cut::kCluster), dim3(Cut::kThreads), Cut::kShared, a);
}

struct DeferredWideGated : DeferredRows {
  DeferredWideGated(const GatedUp& o, const RoundedRows& r)
      : DeferredRows(o.out, r.scratch_bytes), op(o), part(o.w.parts[0]), x(r.x) {
    op.w.parts = {&part, 1};
  }
  void start(gpu::Queue& queue) override { start_wide(queue, op, x, out); }
  void start_rounded(gpu::Queue& queue, const Tensor& rounded, bool) override {
    if (rounded.dtype == DType::bf16) return start_wide(queue, op, x, rounded);
    start(queue);
    Stream stream(queue);
    round_rows(stream, rounded, out);
  }
  GatedUp op;
  WeightPart part;
  Tensor x;
};

}  // namespace

const char* refuse_wide_gated(const Stream& stream, const GatedUp& op) {
  if (stream.queue().capability() != 90) return "for Hopper only";
  if (const char* refusal = refuse_library_gated(stream, op)) return refusal;
  const int64_t tokens = op.x.dim(0);
  if (tokens <= Cut::kRows / 2 || tokens > Cut::kRows) return "for 129 to 256 rows";
  if (op.w.parts.size() != 1 || op.w.parts[0].data.dtype != DType::bf16) return "for one matrix of bf16";
  if (op.w.rows % 4 != 0 || op.out.strides[0] % 2 != 0 || !aligned16(op.out.data)) {
    return "results are no pairs";
  }
  // More than a round takes the time of two; in less than one the library's smaller tiles use more
  // processors.
  const int64_t blocks = blocks_of(op), processors = stream.queue().processors();
  if (blocks > processors || blocks < processors * 3 / 4) return "not about one round of blocks";
  return can_map_tensors() ? nullptr : "the driver makes no tensor maps";
}

void wide_gated(Stream& stream, const GatedUp& op) {
  if (stream.queue().planning()) library_gated(stream, op);  // takes fewer rows
  const RoundedRows x = round_in_scratch(stream, op.x, DType::bf16, op.spends_x, 0, 0);
  stream.queue().defer(std::make_unique<DeferredWideGated>(op, x));
}

}  // namespace atom::ops::gpu_kernels
