#include "ops/argmax.h"

#include <limits>

namespace atom::ops {
namespace {

int32_t best_of(const float* row, int64_t n) {
  float best = -std::numeric_limits<float>::infinity();
  int32_t at = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!(row[i] < std::numeric_limits<float>::infinity())) return -1;
    if (row[i] > best) {
      best = row[i];
      at = static_cast<int32_t>(i);
    }
  }
  return at;
}

void argmax_ref(Stream& stream, const ArgMax& op) {
  stream.pool().parallel_for(op.logits.dim(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      op.out.as<int32_t>()[t] = best_of(op.logits.row<float>(t), op.logits.dim(1));
  });
}

}  // namespace

void check(const ArgMax& op) {
  CHECK(op.logits && op.logits.rank == 2 && op.logits.dtype == DType::f32 && op.logits.strides[1] == 1,
        "logits {}", op.logits.to_string());
  CHECK(op.out && op.out.rank == 1 && op.out.dtype == DType::i32 && op.out.strides[0] == 1 &&
            op.out.dim(0) == op.logits.dim(0) && op.out.device == op.logits.device,
        "out {} for logits {}", op.out.to_string(), op.logits.to_string());
}

template <>
std::span<const Impl<ArgMax>> impls<ArgMax>() {
  static const Impl<ArgMax> list[] = {{"argmax.ref", accept_all<ArgMax>, argmax_ref}};
  return list;
}

}  // namespace atom::ops
