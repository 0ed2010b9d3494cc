// Checks and implementation lists of latent attention.
#include "ops/latent_attention.h"

#include "ops/cpu/head_project.h"
#include "ops/cpu/latent.h"
#include "ops/cpu/need_isa.h"
#include "ops/cpu/rope_store.h"

namespace atom::ops {
namespace {

bool is_matrix(const Tensor& t, int64_t rows, int64_t cols, Device device) {
  return t && t.rank == 2 && t.dtype == DType::f32 && t.strides[1] == 1 && t.dim(0) == rows &&
         t.dim(1) == cols && t.device == device;
}

void check_shape(const LatentShape& s) {
  CHECK(
      s.heads > 0 && s.nope_dim > 0 && s.rope_dim > 0 && s.rope_dim % 2 == 0 && s.v_dim > 0 && s.kv_rank > 0,
      "{} heads of {} + {} and {} lanes, rank {}", s.heads, s.nope_dim, s.rope_dim, s.v_dim, s.kv_rank);
}

void check_entries(const Tensor& cache, const LatentShape& s, const AttentionBatch* batch, Device device) {
  CHECK(batch != nullptr);
  CHECK(cache && cache.rank == 4 && cache.dim(1) == 1 && cache.dim(2) == batch->block_size &&
            cache.dim(3) == s.entry_dim() && cache.contiguous() && cache.device == device &&
            (cache.dtype == DType::f32 || cache.dtype == DType::bf16 || cache.dtype == DType::f16),
        "cache {} for entries of {} in blocks of {}", cache.to_string(), s.entry_dim(), batch->block_size);
}

void check_weight(const Weight& w, int64_t rows, int64_t cols, Device device) {
  CHECK(w.parts.size() == 1 && w.rows == rows && w.cols == cols, "{} parts of [{}, {}], not one of [{}, {}]",
        w.parts.size(), w.rows, w.cols, rows, cols);
  check_part(w.parts[0], cols);
  const Tensor& data = w.parts[0].data;
  CHECK(data.dim(0) == rows && data.device == device, "weight {}", data.to_string());
}

}  // namespace

void check(const LatentStore& op) {
  check_shape(op.shape);
  const int64_t tokens = op.q.dim(0);
  CHECK(is_matrix(op.q, tokens, int64_t{op.shape.heads} * op.shape.query_dim(), op.q.device), "q {}",
        op.q.to_string());
  CHECK(is_matrix(op.kv, tokens, op.shape.entry_dim(), op.q.device), "kv {}", op.kv.to_string());
  CHECK(op.norm && op.norm.rank == 1 && op.norm.dtype == DType::f32 && op.norm.dim(0) == op.shape.kv_rank &&
            op.norm.device == op.q.device,
        "norm {}", op.norm.to_string());
  for (const Tensor* t : {&op.rope.cos, &op.rope.sin}) {
    CHECK(is_matrix(*t, tokens, op.shape.rope_dim / 2, op.q.device), "angles {}", t->to_string());
  }
  check_entries(op.cache, op.shape, op.batch, op.q.device);
  check_batch(op.batch, tokens, op.cache.dim(0), false, 0, op.q.device);
}

void check(const LatentAttention& op) {
  const LatentShape& s = op.shape;
  check_shape(s);
  const int64_t tokens = op.q.dim(0);
  CHECK(is_matrix(op.q, tokens, int64_t{s.heads} * s.query_dim(), op.out.device), "q {}", op.q.to_string());
  CHECK(is_matrix(op.out, tokens, int64_t{s.heads} * s.v_dim, op.out.device), "out {}", op.out.to_string());
  CHECK(op.scale > 0, "scale {}", op.scale);
  check_weight(op.kv_b, int64_t{s.heads} * (s.nope_dim + s.v_dim), s.kv_rank, op.out.device);
  CHECK(!op.selected ||
            (op.selected.rank == 2 && op.selected.dtype == DType::i32 && op.selected.dim(0) == tokens &&
             op.selected.dim(1) > 0 && op.selected.strides[1] == 1 && op.selected.device == op.out.device),
        "selected {}", op.selected.to_string());
  check_entries(op.cache, s, op.batch, op.out.device);
  check_batch(op.batch, tokens, op.cache.dim(0), true, 0, op.out.device);
}

void check(const HeadProject& op) {
  CHECK(op.heads > 0 && op.rows > 0 && op.first >= 0 && op.first + op.rows <= op.head_rows,
        "rows {} + {} of {} in {} heads", op.first, op.rows, op.head_rows, op.heads);
  check_weight(op.w, int64_t{op.heads} * op.head_rows, op.w.cols, op.out.device);
  const int64_t in = op.transposed ? op.w.cols : op.rows, out = op.transposed ? op.rows : op.w.cols;
  CHECK(op.x_stride >= in && op.out_stride >= out, "strides {} and {} for {} and {} lanes", op.x_stride,
        op.out_stride, in, out);
  CHECK(is_matrix(op.x, op.x.dim(0), op.x.dim(1), op.out.device) &&
            op.x.dim(1) >= (op.heads - 1) * op.x_stride + in,
        "x {}", op.x.to_string());
  CHECK(is_matrix(op.out, op.x.dim(0), op.out.dim(1), op.out.device) &&
            op.out.dim(1) >= (op.heads - 1) * op.out_stride + out,
        "out {}", op.out.to_string());
}

template <>
std::span<const Impl<LatentStore>> impls<LatentStore>() {
  using Op = LatentStore;
  static const Impl<Op> list[] = {
#if defined(__x86_64__)
    {"latent_store.avx512", cpu::need_avx512<Op>,
     [](Stream& s, const Op& op) {
       cpu::latent_store(s, op, {cpu::norm_row_avx512, cpu::transform_head_avx512, cpu::store_kv_avx512});
     }},
    {"latent_store.avx2", cpu::need_avx2<Op>,
     [](Stream& s, const Op& op) {
       cpu::latent_store(s, op, {cpu::norm_row_avx2, cpu::transform_head_avx2, cpu::store_kv_avx2});
     }},
#endif
    {"latent_store.ref", accept_all<Op>,
     [](Stream& s, const Op& op) {
       cpu::latent_store(s, op, {cpu::norm_row_ref, cpu::transform_head_ref, cpu::store_kv_ref});
     }},
  };
  return list;
}

template <>
std::span<const Impl<LatentAttention>> impls<LatentAttention>() {
  using Op = LatentAttention;
  static const Impl<Op> list[] = {
      {"latent_attention.expanded", cpu::refuse_latent_expanded, cpu::latent_expanded},
      {"latent_attention.absorbed", cpu::refuse_latent_absorbed, cpu::latent_absorbed},
      {"latent_attention.ref", accept_all<Op>, cpu::latent_attention_ref},
  };
  return list;
}

template <>
std::span<const Impl<HeadProject>> impls<HeadProject>() {
  using Op = HeadProject;
  static const Impl<Op> list[] = {
#if defined(__x86_64__)
    {"head_project.avx512", cpu::need_avx512<Op>,
     [](Stream& s, const Op& op) { cpu::head_project(s, op, cpu::kHeadProjectAvx512); }},
    {"head_project.avx2", cpu::need_avx2<Op>,
     [](Stream& s, const Op& op) { cpu::head_project(s, op, cpu::kHeadProjectAvx2); }},
#endif
    {"head_project.ref", accept_all<Op>, cpu::head_project_ref},
  };
  return list;
}

}  // namespace atom::ops
