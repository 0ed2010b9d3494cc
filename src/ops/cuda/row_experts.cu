// Routed experts of one token.
//   h[use] = weight * act(gate · x, up · x);  out = sum over uses of down · h[use] + weight * bias
// Bound: the bytes of the token's experts.
#include "ops/cuda/row_product.h"
#include "ops/gpu/moe_kernels.h"

namespace atom::ops::gpu_kernels {

const char* refuse_row_experts(const Stream& stream, const MoeExperts& op) {
  if (op.precision != Precision::fast) return "rounds activations";
  if (op.x.dim(0) != 1) return "for one row";
  if (!aligned16(op.x.data)) return "x is not aligned";
  constexpr int64_t kMaxColumns = 40 << 10;  // of all uses, in shared memory
  if (op.ids.dim(1) > 32) return "too many experts of a token";
  if (op.ids.dim(1) * op.down.front().cols > kMaxColumns) return "many uses";
  const char* reason =
      refuse_matrices(op, [&](const WeightPart& part) { return refuse_row_product(stream, part); });
  if (reason != nullptr) return reason;
  const Experts experts = experts_of(op);
  const StoredMatrix &gate = experts.gate.first, &up = experts.up.first;
  if (gate.block_cols != up.block_cols || gate.first_col != up.first_col) return "different scales";
  for (const ExpertMatrix* m : {&experts.gate, &experts.up, &experts.down}) {
    if (m->data_step % 16 != 0 || m->scale_step % 8 != 0) return "experts are not aligned";
  }
  return experts.inter % 8 == 0 ? nullptr : "rows of h are not aligned";
}

void row_experts(Stream& stream, const MoeExperts& op) {
  gpu::Queue& queue = stream.queue();
  const Experts experts = experts_of(op);
  const Routing routing(op);
  auto* h = static_cast<float*>(queue.scratch(routing.k * int64_t{experts.inter} * 4));
  row_product(queue, {.type = op.gate_up.front().parts.front().data.dtype,
                      .w = experts.gate,
                      .up = experts.up,
                      .bias = experts.gate_bias,
                      .up_bias = experts.up_bias,
                      .rows = experts.inter,
                      .cols = experts.hidden,
                      .gated = true,
                      .experts = experts,
                      .kind = RowProduct::Uses::each,
                      .routing = routing,
                      .x = op.x.as<float>(),
                      .out = h});
  const RowProduct down{.type = op.down.front().parts.front().data.dtype,
                        .w = experts.down,
                        .bias = experts.down_bias,
                        .rows = experts.hidden,
                        .cols = experts.inter,
                        .experts = experts,
                        .kind = RowProduct::Uses::sum,
                        .routing = routing,
                        .x = h,
                        .out = op.out.as<float>(),
                        .adds = {op.accumulate ? op.out.as<float>() : nullptr}};
  defer_product(queue, down);
}

}  // namespace atom::ops::gpu_kernels
