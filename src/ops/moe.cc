#include "ops/moe.h"

#include "ops/cpu/moe_cpu.h"

namespace atom::ops {
namespace {

void check_rows(const Tensor& t, DType dtype, int64_t rows, int64_t cols, const char* name) {
  CHECK(t.rank == 2 && t.dtype == dtype && t.dim(0) == rows && t.dim(1) == cols && t.strides[1] == 1,
        "{} is {}, not {} [{}, {}]", name, t.to_string(), dtype_name(dtype), rows, cols);
}

void check_bias(std::span<const Tensor> biases, size_t experts, int64_t n) {
  CHECK(biases.empty() || biases.size() == experts, "{} biases of {} experts", biases.size(), experts);
  for (const Tensor& bias : biases) {
    CHECK(bias.rank == 1 && bias.dtype == DType::f32 && bias.dim(0) == n && bias.contiguous(),
          "bias {} for {}", bias.to_string(), n);
  }
}

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.rank == b.rank && a.dtype == b.dtype && a.dims == b.dims && a.strides == b.strides;
}
int64_t distance(const Tensor& a, const Tensor& b) {
  return static_cast<const std::byte*>(b.data) - static_cast<const std::byte*>(a.data);
}
bool same_scales(const BlockScales& a, const BlockScales& b) {
  return same_shape(a.values, b.values) && a.block_rows == b.block_rows && a.block_cols == b.block_cols &&
         a.first_row == b.first_row && a.first_col == b.first_col;
}

void check_alike(std::span<const Weight> experts) {
  for (size_t e = 1; e < experts.size(); ++e) {
    const auto &first = experts[0].parts, &second = experts[1].parts, &before = experts[e - 1].parts,
               &parts = experts[e].parts;
    bool alike = parts.size() == first.size() && second.size() == first.size();
    for (size_t i = 0; alike && i < parts.size(); ++i) {
      alike = same_shape(parts[i].data, first[i].data) && same_scales(parts[i].scale, first[i].scale) &&
              distance(before[i].data, parts[i].data) == distance(first[i].data, second[i].data) &&
              distance(before[i].scale.values, parts[i].scale.values) ==
                  distance(first[i].scale.values, second[i].scale.values);
    }
    CHECK(alike, "on a GPU expert {} must be stored like those before it", e);
  }
}
void check_alike(std::span<const Tensor> biases) {
  for (size_t e = 1; e < biases.size(); ++e) {
    CHECK(distance(biases[e - 1], biases[e]) == distance(biases[0], biases[1]),
          "on a GPU the bias of expert {} must lie as far behind that before it as all others", e);
  }
}

constexpr Impl<RouteExperts> kRouteExperts[] = {
    {"route_experts.ref", accept_all<RouteExperts>, route_experts_ref},
};
constexpr Impl<MoeExperts> kMoeExperts[] = {
    {"moe_experts.grouped", accept_all<MoeExperts>, moe_experts_grouped},
    {"moe_experts.ref", accept_all<MoeExperts>, moe_experts_ref},
};
constexpr Impl<SigmoidScale> kSigmoidScale[] = {
    {"sigmoid_scale.ref", accept_all<SigmoidScale>, sigmoid_scale_ref},
};

}  // namespace

void check(const RouteExperts& op) {
  const int64_t tokens = op.logits.dim(0), experts = op.logits.dim(1), k = op.ids.dim(1);
  check_rows(op.logits, DType::f32, tokens, experts, "logits");
  check_rows(op.ids, DType::i32, tokens, k, "ids");
  check_rows(op.weights, DType::f32, tokens, k, "weights");
  CHECK(k >= 1 && k <= experts, "{} of {} experts", k, experts);
  CHECK(!op.correction || (op.correction.dtype == DType::f32 && op.correction.contiguous() &&
                           op.correction.elements() == experts),
        "correction {} for {} experts", op.correction.to_string(), experts);
  CHECK(op.groups >= 1 && op.top_groups >= 1 && op.top_groups <= op.groups && experts % op.groups == 0 &&
            op.top_groups * (experts / op.groups) >= k,
        "{} experts of {} in {} of {} groups", k, experts, op.top_groups, op.groups);
  CHECK(op.logits.device == op.ids.device && op.weights.device == op.ids.device &&
            (!op.correction || op.correction.device == op.ids.device),
        "logits and choice on different devices");
}

void check(const MoeExperts& op) {
  const int64_t tokens = op.x.dim(0), hidden = op.x.dim(1), k = op.ids.dim(1);
  check_rows(op.x, DType::f32, tokens, hidden, "x");
  check_rows(op.out, DType::f32, tokens, hidden, "out");
  check_rows(op.ids, DType::i32, tokens, k, "ids");
  check_rows(op.weights, DType::f32, tokens, k, "weights");
  CHECK(op.gate_up.size() == op.down.size(), "{} and {} experts", op.gate_up.size(), op.down.size());
  const int64_t inter = op.down.empty() ? 0 : op.down.front().cols;
  for (size_t e = 0; e < op.down.size(); ++e) {  // the products check the rest
    const Weight &up = op.gate_up[e], &down = op.down[e];
    CHECK(up.rows == 2 * inter && up.cols == hidden && down.rows == hidden && down.cols == inter,
          "expert {}: [{}, {}] and [{}, {}] for hidden {} and inter {}", e, up.rows, up.cols, down.rows,
          down.cols, hidden, inter);
  }
  check_bias(op.gate_up_bias, op.down.size(), 2 * inter);
  check_bias(op.down_bias, op.down.size(), hidden);
  for (const Tensor* t : {&op.x, &op.ids, &op.weights}) {
    CHECK(t->device == op.out.device, "inputs and output on different devices");
  }
  if (op.out.device.kind == Device::cpu) return;
  CHECK(!op.down.empty(), "no experts");
  for (const auto experts : {op.gate_up, op.down}) {
    check_alike(experts);
    if (experts.empty()) continue;
    for (const WeightPart& part : experts.front().parts) {
      check_part(part, experts.front().cols);
      CHECK(part.data.device == op.out.device, "an expert lies on another device");
    }
  }
  check_alike(op.gate_up_bias);
  check_alike(op.down_bias);
}

void check(const SigmoidScale& op) {
  check_rows(op.x, DType::f32, op.x.dim(0), op.x.dim(1), "x");
  check_rows(op.logits, DType::f32, op.x.dim(0), 1, "logits");
}

template <>
std::span<const Impl<RouteExperts>> impls<RouteExperts>() {
  return kRouteExperts;
}

template <>
std::span<const Impl<MoeExperts>> impls<MoeExperts>() {
  return kMoeExperts;
}

template <>
std::span<const Impl<SigmoidScale>> impls<SigmoidScale>() {
  return kSigmoidScale;
}

}  // namespace atom::ops
