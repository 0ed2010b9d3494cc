// Checks and implementation lists of the ops of gated delta nets.
#include "ops/delta_rule.h"

#include "ops/cpu/delta_rows.h"
#include "ops/cpu/gate_rows.h"
#include "ops/cpu/need_isa.h"

namespace atom::ops {
namespace {

bool is_matrix(const Tensor& t, int64_t rows, int64_t min_cols, Device device) {
  return t && t.rank == 2 && t.dtype == DType::f32 && t.strides[1] == 1 && t.dim(0) == rows &&
         t.dim(1) >= min_cols && t.device == device;
}
bool is_vector(const Tensor& t, int64_t n, Device device) {
  return t && t.rank == 1 && t.dtype == DType::f32 && t.dim(0) == n && t.strides[0] == 1 &&
         t.device == device;
}

// Sequences cover all rows in order, and their slots exist; those on a GPU cannot be read here.
void check_sequences(std::span<const RecurrentSequence> sequences, int64_t tokens, const Tensor& state,
                     int64_t elements, Device device) {
  CHECK(state && is_matrix(state, state.dim(0), elements, device) && state.dim(1) == elements,
        "state {} for {} elements", state.to_string(), elements);
  if (device.kind != Device::cpu) {
    CHECK(tokens == 0 || !sequences.empty(), "no sequences for {} rows", tokens);
    return;
  }
  int64_t row = 0;
  for (const RecurrentSequence& s : sequences) {
    CHECK(s.first_row == row && s.rows > 0, "rows {} + {} after {}", s.first_row, s.rows, row);
    CHECK(s.dropped >= 0 && s.dropped <= s.rows, "{} of {} rows dropped", s.dropped, s.rows);
    CHECK(s.slot >= 0 && s.slot < state.dim(0), "slot {} of {}", s.slot, state.dim(0));
    row += s.rows;
  }
  CHECK(row == tokens, "{} rows of {} tokens", row, tokens);
}

}  // namespace

void check(const CausalConv& op) {
  const Device device = device_of(op);
  CHECK(op.kernel >= 2 && op.kernel <= cpu::kMaxConvKernel, "kernel {}", op.kernel);
  const int64_t tokens = op.out.dim(0), channels = op.out.dim(1);
  CHECK(is_matrix(op.out, tokens, channels, device) && is_matrix(op.x, tokens, channels, device),
        "out {} x {}", op.out.to_string(), op.x.to_string());
  CHECK(is_vector(op.weight, channels * op.kernel, device), "weight {}", op.weight.to_string());
  check_sequences(op.sequences, tokens, op.state, (op.kernel - 1) * channels, device);
}

void check(const DeltaRule& op) {
  const Device device = device_of(op);
  CHECK(op.k_heads > 0 && op.v_heads % op.k_heads == 0 && op.v_heads > 0, "{} key heads, {} value heads",
        op.k_heads, op.v_heads);
  CHECK(op.k_dim > 0 && op.v_dim > 0 && op.k_dim <= cpu::kMaxDeltaDim && op.v_dim <= cpu::kMaxDeltaDim,
        "head dims {} and {}", op.k_dim, op.v_dim);
  const int64_t tokens = op.out.dim(0), values = int64_t{op.v_heads} * op.v_dim;
  CHECK(is_matrix(op.out, tokens, values, device) && op.out.dim(1) == values, "out {}", op.out.to_string());
  CHECK(is_matrix(op.qkv, tokens, 2 * int64_t{op.k_heads} * op.k_dim + values, device), "qkv {}",
        op.qkv.to_string());
  CHECK(is_matrix(op.a, tokens, op.v_heads, device) && is_matrix(op.b, tokens, op.v_heads, device),
        "a {} b {}", op.a.to_string(), op.b.to_string());
  CHECK(is_vector(op.a_log, op.v_heads, device) && is_vector(op.dt_bias, op.v_heads, device),
        "a_log {} dt_bias {}", op.a_log.to_string(), op.dt_bias.to_string());
  check_sequences(op.sequences, tokens, op.state, values * op.k_dim, device);
}

void check(const GatedRmsNorm& op) {
  const Device device = device_of(op);
  const int64_t tokens = op.x.dim(0), n = op.x.dim(1);
  CHECK(is_matrix(op.x, tokens, n, device) && is_matrix(op.gate, tokens, n, device) && op.gate.dim(1) == n,
        "x {} gate {}", op.x.to_string(), op.gate.to_string());
  CHECK(op.weight && is_vector(op.weight, op.weight.dim(0), device) && n % op.weight.dim(0) == 0,
        "weight {} x {}", op.weight.to_string(), op.x.to_string());
}

void check(const SigmoidGate& op) {
  const Device device = device_of(op);
  const int64_t tokens = op.x.dim(0), n = op.x.dim(1);
  CHECK(is_matrix(op.x, tokens, n, device) && is_matrix(op.gate, tokens, n, device) && op.gate.dim(1) == n,
        "x {} gate {}", op.x.to_string(), op.gate.to_string());
}

template <>
std::span<const Impl<CausalConv>> impls<CausalConv>() {
  static const Impl<CausalConv> list[] = {
      {"causal_conv.rows", accept_all<CausalConv>, cpu::causal_conv_rows},
      {"causal_conv.ref", accept_all<CausalConv>, cpu::causal_conv_ref},
  };
  return list;
}

template <>
std::span<const Impl<DeltaRule>> impls<DeltaRule>() {
  using Op = DeltaRule;
  static const Impl<Op> list[] = {
#if defined(__x86_64__)
    {"delta_rule.avx512", cpu::need_avx512<Op>,
     [](Stream& s, const Op& op) { cpu::delta_rule(s, op, cpu::delta_head_avx512); }},
    {"delta_rule.avx2", cpu::need_avx2<Op>,
     [](Stream& s, const Op& op) { cpu::delta_rule(s, op, cpu::delta_head_avx2); }},
#endif
    {"delta_rule.ref", accept_all<Op>, cpu::delta_rule_ref},
  };
  return list;
}

template <>
std::span<const Impl<GatedRmsNorm>> impls<GatedRmsNorm>() {
  static const Impl<GatedRmsNorm> list[] = {
      {"gated_norm.ref", accept_all<GatedRmsNorm>, cpu::gated_rms_norm_ref},
  };
  return list;
}

template <>
std::span<const Impl<SigmoidGate>> impls<SigmoidGate>() {
  static const Impl<SigmoidGate> list[] = {
      {"sigmoid_gate.ref", accept_all<SigmoidGate>, cpu::sigmoid_gate_ref},
  };
  return list;
}

}  // namespace atom::ops
