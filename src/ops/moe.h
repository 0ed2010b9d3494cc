// Mixtures of experts: which experts a token takes, and the weighted sum of what they compute.
#pragma once
#include "ops/linear.h"

namespace atom::ops {

enum class RouterScore : uint8_t {
  softmax,         // over all experts
  softmax_chosen,  // over the chosen experts only
  sigmoid,         // of each expert alone
};

// The `k` best experts of every token, best first, equal ones by lowest id, and their weights. A correction
// bias changes the choice, never the weights. With groups, only the experts of the best `top_groups` groups
// can be chosen; a group scores the sum of its two best experts. All in float32.
struct RouteExperts {
  Tensor ids;         // [tokens, k] i32
  Tensor weights;     // [tokens, k] f32
  Tensor logits;      // [tokens, experts] f32
  Tensor correction;  // null or [experts] f32
  RouterScore score = RouterScore::softmax;
  int32_t groups = 1, top_groups = 1;
  bool renormalize = false;  // weights divided by their sum, before `scale`
  float scale = 1;
};

enum class ExpertActivation : uint8_t {
  silu,            // silu(g) * u
  clamped_swiglu,  // g = min(g, limit), u = clamp(u, -limit, limit): g * sigmoid(alpha g) * (u + 1)
};

// On a GPU the experts are stored alike: same types, shapes and scales, each matrix as far behind that of the
// expert before as all others of its kind (runtime/upload.h places them so); the same goes for biases.
//
// out = sum over a token's chosen experts of weight * (down(act(gate(x), up(x)) + biases), of the experts
// [first_expert, first_expert + gate_up.size()) that this rank has.
struct MoeExperts {
  Tensor out;                                 // [tokens, hidden] f32
  Tensor x;                                   // [tokens, hidden] f32
  Tensor ids;                                 // [tokens, k] i32, of all experts
  Tensor weights;                             // [tokens, k] f32
  std::span<const Weight> gate_up;            // per expert [2 * inter, hidden]: gate rows, then up rows
  std::span<const Weight> down;               // per expert [hidden, inter]
  std::span<const Tensor> gate_up_bias = {};  // empty, or per expert [2 * inter] f32
  std::span<const Tensor> down_bias = {};     // empty, or per expert [hidden] f32
  int64_t first_expert = 0;
  ExpertActivation activation = ExpertActivation::silu;
  float limit = 0, alpha = 0;  // clamped_swiglu only
  bool accumulate = false;     // the sum is added to what `out` holds
  Precision precision = Precision::exact;
};

// x[t] *= sigmoid(logits[t]): the gate of a shared expert.
struct SigmoidScale {
  Tensor x;       // [tokens, n] f32, updated in place
  Tensor logits;  // [tokens, 1] f32
};

void check(const RouteExperts& op);
void check(const MoeExperts& op);
void check(const SigmoidScale& op);
inline Device device_of(const RouteExperts& op) { return op.ids.device; }
inline Device device_of(const MoeExperts& op) { return op.out.device; }
inline Device device_of(const SigmoidScale& op) { return op.x.device; }

template <>
std::span<const Impl<RouteExperts>> gpu_impls<RouteExperts>();
template <>
std::span<const Impl<MoeExperts>> gpu_impls<MoeExperts>();
template <>
std::span<const Impl<SigmoidScale>> gpu_impls<SigmoidScale>();

}  // namespace atom::ops
