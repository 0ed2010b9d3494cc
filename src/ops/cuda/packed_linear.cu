// Linear and GatedUp with weights that have scales, for up to a few tiles of rows: the weights are read
// packed.
#include "ops/cuda/packed_product.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

// Beyond, widening the weights once is cheaper than in every tile.
constexpr int64_t kMaxRows = 128, kMaxFp4Rows = 32;
constexpr int64_t kMaxFloatRows = 16;  // beyond, blocks read x often enough to round it first

const char* refuse(const Stream& stream, const Weight& w, const Tensor& x, Precision precision) {
  if (precision != Precision::fast) return "rounds activations";
  if (x.strides[0] % 4 != 0 || !aligned16(x.data)) return "rows of x are not aligned";
  bool scaled = false;
  for (const WeightPart& part : w.parts) {
    scaled |= is_scaled_type(part.data.dtype);
    if (x.dim(0) > (part.data.dtype == DType::f4e2m1x2 ? kMaxFp4Rows : kMaxRows)) return "too many rows";
    if (const char* reason = refuse_packed_matrix(stream, part)) return reason;
  }
  return scaled ? nullptr : "no part has scales";
}

int tile_for(int64_t rows, DType type) {
  int tile = 8;
  while (tile < rows && tile < largest_tile(type)) tile *= 2;
  return tile;
}

// Gives `product` x as it wants it; placed rows go to scratch.
void set_x(Stream& stream, PackedProduct& product, const Tensor& x) {
  product.x = x.data;
  product.x_stride = x.strides[0];
  if (x.dim(0) <= kMaxFloatRows) return;
  void* memory = stream.queue().scratch(dtype_bytes(DType::bf16, x.elements()));
  const Tensor rounded = make_tensor(memory, DType::bf16, {x.dim(0), x.dim(1)}, x.device);
  place_rows(stream, rounded, x, product.type);
  product.x = rounded.data;
  product.x_stride = x.dim(1);
  product.x_is_float = false;
}

PackedProduct product_of(const WeightPart& part, const Tensor& x, float* out, int64_t out_stride) {
  return {.type = part.data.dtype,
          .w = {.first = stored_matrix(part)},
          .rows = static_cast<int>(part.data.dim(0)),
          .cols = static_cast<int>(part.data.dim(1)),
          .works = static_cast<int>(x.dim(0)),
          .out = out,
          .out_stride = out_stride};
}

void run(Stream& stream, PackedProduct product, const Tensor& x) {
  set_x(stream, product, x);
  packed_product(stream, product, tile_for(x.dim(0), product.type), 0);
}

}  // namespace

const char* refuse_packed_linear(const Stream& stream, const Linear& op) {
  return refuse(stream, op.w, op.x, op.precision);
}

void packed_linear(Stream& stream, const Linear& op) {
  if (op.x.dim(0) == 0) return;
  int64_t row = 0;
  for (const WeightPart& part : op.w.parts) {
    PackedProduct product = product_of(part, op.x, op.out.as<float>() + row, op.out.strides[0]);
    if (op.bias) product.bias.first = op.bias.as<float>() + row;
    run(stream, product, op.x);
    row += part.data.dim(0);
  }
}

const char* refuse_packed_gated(const Stream& stream, const GatedUp& op) {
  if (const char* reason = refuse(stream, op.w, op.x, op.precision)) return reason;
  const int64_t half = op.w.rows / 2;
  const WeightPart& gate = op.w.parts.front();
  if (op.w.parts.size() == 1) return nullptr;
  return op.w.parts.size() == 2 && gate.data.dim(0) == half && op.w.parts[1].data.dtype == gate.data.dtype &&
                 op.w.parts[1].scale.block_cols == gate.scale.block_cols
             ? nullptr
             : "gate and up are stored differently";
}

void packed_gated(Stream& stream, const GatedUp& op) {
  if (op.x.dim(0) == 0) return;
  const int64_t half = op.w.rows / 2;
  const bool one = op.w.parts.size() == 1;
  const WeightPart gate = one ? op.w.parts[0].rows(0, half) : op.w.parts[0];
  const WeightPart up = one ? op.w.parts[0].rows(half, half) : op.w.parts[1];
  PackedProduct product = product_of(gate, op.x, op.out.as<float>(), op.out.strides[0]);
  product.up.first = stored_matrix(up);
  product.gated = true;
  if (op.bias) {
    product.bias.first = op.bias.as<float>();
    product.up_bias.first = op.bias.as<float>() + half;
  }
  run(stream, product, op.x);
}

}  // namespace atom::ops::gpu_kernels
