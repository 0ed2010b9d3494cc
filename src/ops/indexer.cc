// Checks and implementation lists of the sparse-attention indexer.
#include "ops/indexer.h"

#include "ops/cpu/index_select.h"
#include "ops/cpu/need_isa.h"

namespace atom::ops {
namespace {

bool is_matrix(const Tensor& t, int64_t rows, int64_t cols, Device device) {
  return t && t.rank == 2 && t.dtype == DType::f32 && t.strides[1] == 1 && t.dim(0) == rows &&
         t.dim(1) == cols && t.device == device;
}

void check_keys(const Tensor& cache, const Tensor& scales, const IndexShape& s, const AttentionBatch* batch,
                Device device) {
  CHECK(s.heads > 0 && s.head_dim > 0 && s.rope_dim > 0 && s.rope_dim % 2 == 0 && s.rope_dim <= s.head_dim,
        "{} heads of {} lanes, {} with position", s.heads, s.head_dim, s.rope_dim);
  CHECK(batch != nullptr);
  CHECK(cache && cache.rank == 4 && cache.dim(1) == 1 && cache.dim(2) == batch->block_size &&
            cache.dim(3) == s.head_dim && cache.contiguous() && cache.device == device &&
            (cache.dtype == DType::f32 || cache.dtype == DType::bf16 || cache.dtype == DType::f16 ||
             cache.dtype == DType::f8e4m3),
        "cache {} for keys of {} in blocks of {}", cache.to_string(), s.head_dim, batch->block_size);
  const bool scaled = cache.dtype == DType::f8e4m3;
  CHECK(scaled ? is_matrix(scales, cache.dim(0), batch->block_size, device) && scales.contiguous() : !scales,
        "scales {} of cache {}", scales.to_string(), cache.to_string());
}

}  // namespace

void check(const IndexStore& op) {
  check_keys(op.cache, op.scales, op.shape, op.batch, op.q.device);
  const int64_t tokens = op.q.dim(0);
  CHECK(is_matrix(op.q, tokens, int64_t{op.shape.heads} * op.shape.head_dim, op.q.device), "q {}",
        op.q.to_string());
  CHECK(is_matrix(op.k, tokens, op.shape.head_dim, op.q.device), "k {}", op.k.to_string());
  for (const Tensor* t : {&op.norm_weight, &op.norm_bias}) {
    CHECK(*t && t->rank == 1 && t->dtype == DType::f32 && t->dim(0) == op.shape.head_dim &&
              t->device == op.q.device,
          "norm {}", t->to_string());
  }
  for (const Tensor* t : {&op.rope.cos, &op.rope.sin}) {
    CHECK(is_matrix(*t, tokens, op.shape.rope_dim / 2, op.q.device), "angles {}", t->to_string());
  }
  check_batch(op.batch, tokens, op.cache.dim(0), false, 0, op.q.device);
}

void check(const IndexSelect& op) {
  check_keys(op.cache, op.scales, op.shape, op.batch, op.q.device);
  const int64_t tokens = op.q.dim(0);
  CHECK(is_matrix(op.q, tokens, int64_t{op.shape.heads} * op.shape.head_dim, op.q.device), "q {}",
        op.q.to_string());
  CHECK(is_matrix(op.weights, tokens, op.shape.heads, op.q.device), "weights {}", op.weights.to_string());
  CHECK(op.out && op.out.rank == 2 && op.out.dtype == DType::i32 && op.out.dim(0) == tokens &&
            op.out.dim(1) > 0 && op.out.strides[1] == 1 && op.out.device == op.q.device,
        "out {}", op.out.to_string());
  check_batch(op.batch, tokens, op.cache.dim(0), true, 0, op.q.device);
}

template <>
std::span<const Impl<IndexStore>> impls<IndexStore>() {
  using Op = IndexStore;
  static const Impl<Op> list[] = {{"index_store.ref", accept_all<Op>, cpu::index_store}};
  return list;
}

template <>
std::span<const Impl<IndexSelect>> impls<IndexSelect>() {
  using Op = IndexSelect;
  static const Impl<Op> list[] = {
#if defined(__x86_64__)
    {"index_select.avx512", cpu::need_avx512<Op>,
     [](Stream& s, const Op& op) { cpu::index_select(s, op, cpu::kIndexAvx512); }},
    {"index_select.avx2", cpu::need_avx2<Op>,
     [](Stream& s, const Op& op) { cpu::index_select(s, op, cpu::kIndexAvx2); }},
#endif
    {"index_select.ref", accept_all<Op>,
     [](Stream& s, const Op& op) { cpu::index_select(s, op, cpu::kIndexRef); }},
  };
  return list;
}

}  // namespace atom::ops
