// Checks and implementation lists of the norm ops.
#include "ops/norm.h"

#include "comm/communicator.h"
#include "ops/cpu/need_isa.h"
#include "ops/cpu/norm_rows.h"

namespace atom::ops {
namespace {

bool is_matrix(const Tensor& t, Device device) {
  return t && t.rank == 2 && t.dtype == DType::f32 && t.strides[1] == 1 && t.device == device;
}
bool is_vector(const Tensor& t, int64_t n, Device device) {
  return t && t.rank == 1 && t.dtype == DType::f32 && t.dim(0) == n && t.strides[0] == 1 &&
         t.device == device;
}

}  // namespace

void check(const AddRmsNorm& op) {
  const Device device = op.residual.device;
  CHECK(is_matrix(op.residual, device), "residual {}", op.residual.to_string());
  if (op.add) {
    CHECK(is_matrix(op.add, device) && op.add.dims == op.residual.dims, "add {} residual {}",
          op.add.to_string(), op.residual.to_string());
  }
  if (op.out) {
    CHECK(is_matrix(op.out, device) && op.out.dims == op.residual.dims, "out {} residual {}",
          op.out.to_string(), op.residual.to_string());
    CHECK(op.out.data != op.residual.data, "out must not be the residual");
    CHECK(is_vector(op.weight, op.residual.dim(1), device), "weight {} residual {}", op.weight.to_string(),
          op.residual.to_string());
  }
  CHECK(op.reduce == nullptr || op.reduce->size() == 1 || (op.add && op.add.contiguous()),
        "a reduction needs a contiguous add");
}

void check(const RmsNorm& op) {
  const Device device = op.out.device;
  CHECK(is_matrix(op.x, device) && is_matrix(op.out, device) && op.out.dims == op.x.dims, "out {} x {}",
        op.out.to_string(), op.x.to_string());
  CHECK(is_vector(op.weight, op.x.dim(1), device), "weight {} x {}", op.weight.to_string(), op.x.to_string());
}

template <>
std::span<const Impl<AddRmsNorm>> impls<AddRmsNorm>() {
  using Op = AddRmsNorm;
  static const Impl<Op> list[] = {
#if defined(__x86_64__)
    {"norm.avx512", cpu::need_avx512<Op>,
     [](Stream& s, const Op& op) { cpu::add_rms_norm(s, op, cpu::norm_row_avx512); }},
    {"norm.avx2", cpu::need_avx2<Op>,
     [](Stream& s, const Op& op) { cpu::add_rms_norm(s, op, cpu::norm_row_avx2); }},
#endif
    {"norm.ref", accept_all<Op>,
     [](Stream& s, const Op& op) { cpu::add_rms_norm(s, op, cpu::norm_row_ref); }},
  };
  return list;
}

template <>
std::span<const Impl<RmsNorm>> impls<RmsNorm>() {
  using Op = RmsNorm;
  static const Impl<Op> list[] = {
#if defined(__x86_64__)
    {"norm.avx512", cpu::need_avx512<Op>,
     [](Stream& s, const Op& op) { cpu::rms_norm(s, op, cpu::norm_row_avx512); }},
    {"norm.avx2", cpu::need_avx2<Op>,
     [](Stream& s, const Op& op) { cpu::rms_norm(s, op, cpu::norm_row_avx2); }},
#endif
    {"norm.ref", accept_all<Op>, [](Stream& s, const Op& op) { cpu::rms_norm(s, op, cpu::norm_row_ref); }},
  };
  return list;
}

}  // namespace atom::ops
