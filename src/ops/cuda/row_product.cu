// Products of one row: which matrices, Linear and GatedUp, and what they share with norms around them.
#include <bit>

#include "ops/cuda/row_kernel.h"
#include "ops/cuda/row_product.h"
#include "ops/gpu/deferred.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

// A product that a gate or a norm after it may change.
struct DeferredProduct : DeferredShare {
  DeferredProduct(const RowProduct& p, Device device)
      : DeferredShare(make_tensor(p.out, DType::f32, {1, p.rows}, device)), product(p) {}
  void start(gpu::Queue& queue) override { row_product(queue, product); }
  Rest start_adding(gpu::Queue& queue, const Tensor& residual) override {
    product.out = residual.as<float>();
    product.adds[1] = product.out;
    row_product(queue, product);
    return {};
  }
  RowProduct product;
};

const char* refuse(const Stream& stream, const Weight& w, const Tensor& x, Precision precision) {
  if (precision != Precision::fast) return "rounds activations";
  if (x.dim(0) != 1) return "for one row";
  if (!aligned16(x.data)) return "x is not aligned";
  for (const WeightPart& part : w.parts) {
    if (const char* reason = refuse_row_product(stream, part)) return reason;
  }
  return nullptr;
}

RowProduct product_of(const WeightPart& part, const float* x, float* out) {
  return {.type = part.data.dtype,
          .w = {.first = stored_matrix(part)},
          .rows = static_cast<int>(part.data.dim(0)),
          .cols = static_cast<int>(part.data.dim(1)),
          .x = x,
          .out = out};
}

}  // namespace

bool scale_in_product(gpu::Queue& queue, const SigmoidScale& op) {
  auto* deferred = dynamic_cast<DeferredProduct*>(queue.deferred());
  if (deferred == nullptr || op.x.dim(0) != 1 || deferred->product.out != op.x.data ||
      deferred->product.kind != RowProduct::Uses::one || deferred->product.adds[0] != nullptr) {
    return false;
  }
  deferred->product.gate_logit = op.logits.as<float>();
  return true;
}

void defer_product(gpu::Queue& queue, const RowProduct& product) {
  queue.defer(std::make_unique<DeferredProduct>(product, queue.device()));
}

const char* refuse_row_product(const Stream& stream, const WeightPart& part) {
  if (stream.queue().capability() < 80) return "needs compute capability 8.0";
  const Tensor& data = part.data;
  if (data.dtype != DType::bf16 && !is_scaled_type(data.dtype)) return "for bf16, E4M3 and E2M1";
  auto on_16_bytes = [](int64_t bytes) { return bytes % 16 == 0; };
  if (!aligned16(data.data) || !on_16_bytes(dtype_bytes(data.dtype, data.dim(1))) ||
      !on_16_bytes(dtype_bytes(data.dtype, data.strides[0]))) {
    return "rows of the weight are not aligned";
  }
  const BlockScales& s = part.scale;
  if (data.dtype == DType::f8e4m3 && s.first_col + data.dim(1) > s.block_cols &&
      (s.block_cols != 128 || s.first_col % 128 != 0)) {
    return "scales are not those of 128 columns";
  }
  if (is_scaled_type(data.dtype) && s.first_row + data.dim(0) > s.block_rows &&
      !std::has_single_bit(static_cast<uint64_t>(s.block_rows))) {
    return "the rows of a block of scales are no power of two";
  }
  if (data.dtype == DType::f4e2m1x2 && (s.first_col != 0 || s.values.strides[0] % 8 != 0 ||
                                        reinterpret_cast<uintptr_t>(s.values.data) % 8 != 0)) {
    return "rows of scales are not aligned";
  }
  constexpr int64_t kMaxCols = 40 << 10;  // of x in shared memory
  return data.dim(1) > kMaxCols ? "too many columns" : nullptr;
}

void row_product(gpu::Queue& queue, const RowProduct& product) {
  if (product.type == DType::f8e4m3) return start_row_fp8(queue, product);
  if (product.type == DType::f4e2m1x2) return start_row_fp4(queue, product);
  start_row_bf16(queue, product);
}

const char* refuse_row_linear(const Stream& stream, const Linear& op) {
  return refuse(stream, op.w, op.x, op.precision);
}

void row_linear(Stream& stream, const Linear& op) {
  gpu::Queue& queue = stream.queue();
  int64_t row = 0;
  for (const WeightPart& part : op.w.parts) {
    RowProduct product = product_of(part, op.x.as<float>(), op.out.as<float>() + row);
    if (op.bias) product.bias.first = op.bias.as<float>() + row;
    take_norm(queue, product);
    op.w.parts.size() == 1 ? defer_product(queue, product) : row_product(queue, product);
    row += part.data.dim(0);
  }
}

const char* refuse_row_gated(const Stream& stream, const GatedUp& op) {
  if (const char* reason = refuse(stream, op.w, op.x, op.precision)) return reason;
  if (op.w.parts.size() == 1) return nullptr;
  const WeightPart &gate = op.w.parts[0], &up = op.w.parts[1];
  return op.w.parts.size() == 2 && gate.data.dim(0) == op.w.rows / 2 && up.data.dtype == gate.data.dtype &&
                 up.scale.block_rows == gate.scale.block_rows &&
                 up.scale.block_cols == gate.scale.block_cols && up.scale.first_col == gate.scale.first_col
             ? nullptr
             : "gate and up are stored differently";
}

void row_gated(Stream& stream, const GatedUp& op) {
  const int64_t half = op.w.rows / 2;
  const bool one = op.w.parts.size() == 1;
  const WeightPart gate = one ? op.w.parts[0].rows(0, half) : op.w.parts[0];
  const WeightPart up = one ? op.w.parts[0].rows(half, half) : op.w.parts[1];
  RowProduct product = product_of(gate, op.x.as<float>(), op.out.as<float>());
  product.up.first = stored_matrix(up);
  product.gated = true;
  if (op.bias) {
    product.bias.first = op.bias.as<float>();
    product.up_bias.first = op.bias.as<float>() + half;
  }
  take_norm(stream.queue(), product);
  row_product(stream.queue(), product);
}

}  // namespace atom::ops::gpu_kernels
