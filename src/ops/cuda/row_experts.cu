// Routed experts of one token.
//   h[use] = weight * act(gate · x, up · x);  out = sum over uses of down · h[use] + weight * bias
// Bound: the bytes of the token's experts.
#include <utility>

#include "ops/cuda/expert_products.h"
#include "ops/cuda/row_product.h"
#include "ops/gpu/decode_kernels.h"
#include "ops/gpu/deferred.h"
#include "ops/gpu/moe_kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

const char* refuse_uses(int64_t uses, int64_t inter) {
  constexpr int64_t kMostUses = 32;          // a lane each
  constexpr int64_t kMaxColumns = 40 << 10;  // of all uses, in shared memory
  if (uses > kMostUses) return "too many experts of a token";
  return uses * inter > kMaxColumns ? "many uses" : nullptr;
}

}  // namespace

const char* refuse_row_experts(const Stream& stream, const MoeExperts& op) {
  if (op.precision != Precision::fast) return "rounds activations";
  if (op.x.dim(0) != 1) return "for one row";
  if (!aligned16(op.x.data)) return "x is not aligned";
  if (const char* reason = refuse_uses(op.ids.dim(1), op.down.front().cols)) return reason;
  const char* reason =
      refuse_matrices(op, [&](const WeightPart& part) { return refuse_row_product(stream, part); });
  if (reason != nullptr) return reason;
  const Experts experts = experts_of(op);
  const StoredMatrix &gate = experts.gate.first, &up = experts.up.first;
  if (gate.block_rows != up.block_rows || gate.block_cols != up.block_cols || gate.first_col != up.first_col)
    return "different scales";
  for (const ExpertMatrix* m : {&experts.gate, &experts.up, &experts.down}) {
    if (m->data_step % 16 != 0 || m->scale_step % 8 != 0) return "experts are not aligned";
  }
  return experts.inter % 8 == 0 ? nullptr : "rows of h are not aligned";
}

namespace {

// Both products, of the uses in `up.routing` and of the shared expert if `up` and `down` have it; all else is
// that of `op`.
void start_products(gpu::Queue& queue, const MoeExperts& op, RowProduct up, RowProduct down) {
  const Experts experts = experts_of(op);
  const Routing routing(op);
  auto* h = static_cast<float*>(queue.scratch((routing.k + up.shared()) * int64_t{experts.inter} * 4));
  set_up_matrices(up, op, experts);
  set_down_matrices(down, op, experts);
  up.kind = RowProduct::Uses::each;
  up.out = h;
  down.kind = RowProduct::Uses::sum;
  down.x = h;
  down.out = op.out.as<float>();
  up.routing = down.routing = routing;
  row_product(queue, up);
  defer_product(queue, down);
}

// The shared expert as the only one of a mixture.
MoeExperts shared_as_experts(const MoeBlock& op) {
  MoeExperts shared = op.experts;
  shared.gate_up = {&op.shared_up.w, 1};
  shared.down = {&op.shared_down.w, 1};
  shared.gate_up_bias = shared.down_bias = {};
  return shared;
}

bool alike(const StoredMatrix& a, const StoredMatrix& b) {
  return a.stride == b.stride && a.scale_stride == b.scale_stride && a.block_rows == b.block_rows &&
         a.block_cols == b.block_cols && a.first_row == b.first_row && a.first_col == b.first_col;
}

const char* refuse_shared(const Stream& stream, const MoeBlock& op) {
  if (op.shared_up.bias || op.shared_down.bias || !op.experts.gate_up_bias.empty() ||
      !op.experts.down_bias.empty()) {
    return "has biases";
  }
  if (op.experts.activation != ExpertActivation::silu) return "two activations";
  const MoeExperts shared = shared_as_experts(op);
  if (shared.down.front().cols != op.experts.down.front().cols) return "the shared expert has another width";
  if (const char* reason = refuse_row_experts(stream, shared)) return reason;
  for (const auto& [a, b] :
       {std::pair(&op.experts.gate_up, &shared.gate_up), {&op.experts.down, &shared.down}}) {
    if (a->front().parts[0].data.dtype != b->front().parts[0].data.dtype) return "another type of matrix";
  }
  const Experts one = experts_of(shared), all = experts_of(op.experts);
  return alike(one.gate.first, all.gate.first) && alike(one.up.first, all.up.first) &&
                 alike(one.down.first, all.down.first)
             ? nullptr
             : "the shared expert is stored differently";
}

RowProduct::Shared shared_matrix(const ExpertMatrix& m) { return {m.first.data, m.first.scales}; }

}  // namespace

void row_experts(Stream& stream, const MoeExperts& op) {
  start_products(stream.queue(), op, {.x = op.x.as<float>()},
                 {.adds = {op.accumulate ? op.out.as<float>() : nullptr}});
}

const char* refuse_row_block(const Stream& stream, const MoeBlock& op) {
  if (op.experts.x.dim(0) != 1) return "for one row";
  if (const char* reason = refuse_route_few(stream, op.route)) return reason;
  if (const char* reason = refuse_row_experts(stream, op.experts)) return reason;
  if (!op.shared_up.out) return nullptr;
  const int64_t uses = op.experts.ids.dim(1) + 1;
  if (const char* reason = refuse_uses(uses, op.experts.down.front().cols)) return reason;
  return refuse_shared(stream, op);
}

void row_block(Stream& stream, const MoeBlock& op) {
  gpu::Queue& queue = stream.queue();
  RowProduct up{.early = true, .x = op.experts.x.as<float>()}, down{};
  // The norm before the router is made once more by the products, so that they do not wait for it.
  if (const auto* norm = dynamic_cast<const DeferredNorm*>(queue.deferred()); norm && norm->makes(up.x)) {
    read_before_norm(norm->norm, up);
    up.normed = nullptr;
  }
  if (op.shared_up.out) {
    const Experts shared = experts_of(shared_as_experts(op));
    up.shared_w = shared_matrix(shared.gate);
    up.shared_up = shared_matrix(shared.up);
    down.shared_w = shared_matrix(shared.down);
    down.gate_logit = op.route.also.out.as<float>();
  }
  route_few_then(stream, op.route, up.early);
  start_products(queue, op.experts, up, down);
}

}  // namespace atom::ops::gpu_kernels
