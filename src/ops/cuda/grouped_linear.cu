// Linear and GatedUp with stored weights on Hopper, for several rows of x: a grouped product of one matrix.
#include "ops/cuda/grouped_product.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int64_t kMinRows = 5;  // below, the kernels of few rows have less to set up
constexpr int64_t kMaxRows = 128;

const char* refuse(const Stream& stream, const Weight& w, const Tensor& x, Precision precision) {
  if (stream.queue().capability() != 90) return "for Hopper only";
  if (precision != Precision::fast) return "rounds activations";
  if (x.dim(0) < kMinRows) return "too few rows";
  if (x.dim(0) > kMaxRows) return "too many rows";
  if (x.strides[0] % 4 != 0 || !aligned16(x.data)) return "rows of x are not aligned";
  bool scaled = false;
  for (const WeightPart& part : w.parts) {
    scaled |= is_scaled_type(part.data.dtype);
    if (const char* reason = refuse_grouped_matrix(stream, part)) return reason;
  }
  if (!scaled) return "no part has scales";
  return can_map_tensors() ? nullptr : "the driver makes no tensor maps";
}

// Products of one x, which is placed in scratch for the type of the weights.
class Products {
 public:
  Products(Stream& stream, const Tensor& x) : stream_(stream), x_(x), tile_(tile_of_rows(x.dim(0))) {
    const int64_t x_bytes = aligned(x.dim(0) * x.dim(1) * 2), slot_bytes = aligned(x.dim(0) * 8);
    auto* memory =
        static_cast<std::byte*>(stream.queue().scratch(x_bytes + slot_bytes + partials_bytes(stream, tile_)));
    placed_ = memory;
    slots_ = reinterpret_cast<float2*>(memory + x_bytes);
    partials_ = reinterpret_cast<float*>(memory + x_bytes + slot_bytes);
  }

  void run(GroupedProduct product) {
    product.x_rows = static_cast<int>(x_.dim(0));
    product.slots = slots_;
    product.partials = partials_;
    if (type_ != product.type) {
      type_ = product.type;
      place_grouped(stream_,
                    {.out = placed_,
                     .slots = slots_,
                     .x = x_.as<float>(),
                     .x_stride = x_.strides[0],
                     .cols = static_cast<int>(x_.dim(1)),
                     .rows = static_cast<int>(x_.dim(0))},
                    type_, product.half);
    }
    start_grouped(stream_, product, placed_, x_.dim(0), tile_);
  }

 private:
  Stream& stream_;
  const Tensor& x_;
  const int tile_;
  void* placed_;
  float2* slots_;
  float* partials_;
  DType type_ = DType::u8;  // for which x is placed; none yet
};

GroupedProduct product_of(const WeightPart& part, float* out, int64_t out_stride) {
  return {.type = part.data.dtype,
          .w = {.first = stored_matrix(part)},
          .rows = static_cast<int>(part.data.dim(0)),
          .cols = static_cast<int>(part.data.dim(1)),
          .out = out,
          .out_stride = out_stride};
}

}  // namespace

const char* refuse_grouped_linear(const Stream& stream, const Linear& op) {
  return refuse(stream, op.w, op.x, op.precision);
}

void grouped_linear(Stream& stream, const Linear& op) {
  Products products(stream, op.x);
  int64_t row = 0;
  for (const WeightPart& part : op.w.parts) {
    GroupedProduct product = product_of(part, op.out.as<float>() + row, op.out.strides[0]);
    if (op.bias) product.bias.first = op.bias.as<float>() + row;
    products.run(product);
    row += part.data.dim(0);
  }
}

const char* refuse_grouped_gated(const Stream& stream, const GatedUp& op) {
  if (stream.queue().capability() != 90) return "for Hopper only";
  if (const char* reason = refuse_packed_gated(stream, op)) return reason;
  return refuse(stream, op.w, op.x, op.precision);
}

void grouped_gated(Stream& stream, const GatedUp& op) {
  const int64_t half = op.w.rows / 2;
  const bool one = op.w.parts.size() == 1;
  const WeightPart gate = one ? op.w.parts[0].rows(0, half) : op.w.parts[0];
  const WeightPart up = one ? op.w.parts[0].rows(half, half) : op.w.parts[1];
  GroupedProduct product = product_of(gate, op.out.as<float>(), op.out.strides[0]);
  product.up.first = stored_matrix(up);
  product.gated = true;
  if (op.bias) {
    product.bias.first = op.bias.as<float>();
    product.up_bias.first = op.bias.as<float>() + half;
  }
  Products(stream, op.x).run(product);
}

}  // namespace atom::ops::gpu_kernels
