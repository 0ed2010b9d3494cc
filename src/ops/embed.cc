// Checks and implementation lists of embedding look-up and row gathering.
#include "ops/embed.h"

#include "ops/cpu/embed_ref.h"

namespace atom::ops {
namespace {

bool is_matrix(const Tensor& t) { return t && t.rank == 2 && t.dtype == DType::f32 && t.strides[1] == 1; }

}  // namespace

void check(const Embed& op) {
  CHECK(is_matrix(op.out) && op.out.dim(0) == static_cast<int64_t>(op.ids.size()) &&
            op.out.dim(1) == op.table.cols,
        "out {} for {} ids of a table of {} columns", op.out.to_string(), op.ids.size(), op.table.cols);
  int64_t rows = 0;
  for (const WeightPart& part : op.table.parts) {
    check_part(part, op.table.cols);
    CHECK(part.data.device == op.out.device, "table part {} for out {}", part.data.to_string(),
          op.out.to_string());
    rows += part.data.dim(0);
  }
  CHECK(rows == op.table.rows, "parts have {} rows, the table {}", rows, op.table.rows);
}

void check(const GatherRows& op) {
  CHECK(is_matrix(op.x) && is_matrix(op.out) && op.out.dim(0) == static_cast<int64_t>(op.rows.size()) &&
            op.out.dim(1) == op.x.dim(1) && op.out.device == op.x.device,
        "out {} for {} rows of {}", op.out.to_string(), op.rows.size(), op.x.to_string());
  if (op.out.device.kind != Device::cpu) return;
  for (const int32_t row : op.rows) {
    CHECK(row >= 0 && row < op.x.dim(0), "row {} of {}", row, op.x.to_string());
  }
}

template <>
std::span<const Impl<Embed>> impls<Embed>() {
  static const Impl<Embed> list[] = {{"embed.ref", accept_all<Embed>, cpu::embed_ref}};
  return list;
}

template <>
std::span<const Impl<GatherRows>> impls<GatherRows>() {
  static const Impl<GatherRows> list[] = {{"gather.ref", accept_all<GatherRows>, cpu::gather_rows_ref}};
  return list;
}

}  // namespace atom::ops
