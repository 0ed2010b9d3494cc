// Checks, the composed entry and the CPU's list of attention from qkv rows.
#include "ops/attend.h"

namespace atom::ops {
namespace {

constexpr Impl<Attend> kAttend[] = {{"attend.composed", accept_all<Attend>, attend_composed}};

}  // namespace

void check(const Attend& op) {
  check(op.store);
  check(op.attention);
  const QkNormRopeStore& s = op.store;
  const PagedAttention& p = op.attention;
  CHECK(p.heads == s.heads && p.kv_heads == s.kv_heads && p.head_dim == s.head_dim && p.batch == s.batch,
        "stored with {}/{} heads of {}, read with {}/{} of {}", s.heads, s.kv_heads, s.head_dim, p.heads,
        p.kv_heads, p.head_dim);
  CHECK(p.q.data == s.qkv.data && p.q.strides[0] == s.qkv.strides[0] && p.k_cache.data == s.k_cache.data &&
            p.v_cache.data == s.v_cache.data,
        "attention reads other tensors than those that are stored");
  if (op.gate) check(SigmoidGate{p.out, op.gate});
}

void attend_composed(Stream& stream, const Attend& op) {
  run(stream, op.store);
  run(stream, op.attention);
  if (op.gate) run(stream, SigmoidGate{op.attention.out, op.gate});
}

template <>
std::span<const Impl<Attend>> impls<Attend>() {
  return kAttend;
}

}  // namespace atom::ops
