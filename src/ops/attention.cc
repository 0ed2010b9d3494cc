// Checks and implementation lists of paged attention and of what stores its keys and values.
#include "ops/attention.h"

#include "ops/cpu/attention_paged.h"
#include "ops/cpu/need_isa.h"
#include "ops/cpu/rope_store.h"

namespace atom::ops {
namespace {

bool is_matrix(const Tensor& t, int64_t rows, int64_t min_cols, Device device) {
  return t && t.rank == 2 && t.dtype == DType::f32 && t.strides[1] == 1 && t.dim(0) == rows &&
         t.dim(1) >= min_cols && t.device == device;
}
bool is_vector_or_null(const Tensor& t, int64_t n, Device device) {
  return !t ||
         (t.rank == 1 && t.dtype == DType::f32 && t.dim(0) == n && t.strides[0] == 1 && t.device == device);
}

void check_heads(int32_t heads, int32_t kv_heads, int32_t head_dim) {
  CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && head_dim > 0 && head_dim <= cpu::kMaxHeadDim,
        "{} heads, {} kv heads of {} elements", heads, kv_heads, head_dim);
}

void check_cache(const Tensor& k, const Tensor& v, int64_t kv_heads, int64_t block_size, int64_t head_dim,
                 Device device) {
  for (const Tensor* t : {&k, &v}) {
    CHECK(*t && t->rank == 4 && t->dim(1) == kv_heads && t->dim(2) == block_size && t->dim(3) == head_dim &&
              t->strides[3] == 1 && t->strides[2] == head_dim && t->device == device,
          "cache {} for {} kv heads of {} elements in blocks of {}", t->to_string(), kv_heads, head_dim,
          block_size);
  }
  CHECK(k.dtype == v.dtype && k.dim(0) == v.dim(0) &&
            (k.dtype == DType::f32 || k.dtype == DType::bf16 || k.dtype == DType::f16 ||
             k.dtype == DType::f8e4m3),
        "k cache {}, v cache {}", k.to_string(), v.to_string());
}

void check_scales(const KvScales& s, DType cache) {
  CHECK(cache == DType::f8e4m3 ? s.k > 0 && s.v > 0 : s.k == 1 && s.v == 1, "scales {} and {} of a {} cache",
        s.k, s.v, dtype_name(cache));
}

#if defined(__x86_64__)
const char* refuse_amx(const Stream&, const PagedAttention& op) {
  if (!cpu_features().amx_bf16) return "needs AMX";
  const DType cache = op.k_cache.dtype;
  return cache == DType::bf16 || cache == DType::f8e4m3 ? nullptr : "the cache is not bf16 or E4M3";
}
#endif

}  // namespace

void check_batch(const AttentionBatch* batch, int64_t tokens, int64_t blocks, bool reads_context,
                 int32_t window, Device device) {
  CHECK(batch != nullptr && batch->tokens == tokens && batch->block_size > 0, "batch for {} rows", tokens);
  if (device.kind != Device::cpu) return;
  int64_t row = 0;
  for (const AttentionSequence& s : batch->sequences) {
    CHECK(s.first_row == row && s.rows >= 0 && s.context >= 0,
          "sequence at row {} of {} rows after {} tokens", s.first_row, s.rows, s.context);
    row += s.rows;
    if (s.rows == 0) continue;
    int64_t first = reads_context ? 0 : s.context;
    if (reads_context && window > 0 && s.context >= window) first = int64_t{s.context} - window + 1;
    const int64_t last = int64_t{s.context} + s.rows - 1;
    for (int64_t b = first / batch->block_size; b <= last / batch->block_size; ++b) {
      CHECK(s.block_table[b] >= 0 && s.block_table[b] < blocks,
            "entry {} of a block table is {} of {} blocks", b, s.block_table[b], blocks);
    }
  }
  CHECK(row == tokens, "sequences have {} rows, the batch {}", row, tokens);
}

void check(const QkNormRopeStore& op) {
  check_heads(op.heads, op.kv_heads, op.head_dim);
  const int64_t width = (int64_t{op.heads} + 2 * int64_t{op.kv_heads}) * op.head_dim;
  CHECK(is_matrix(op.qkv, op.qkv.dim(0), width, op.qkv.device) && op.qkv.dim(1) == width,
        "qkv {} for {} columns", op.qkv.to_string(), width);
  CHECK(is_vector_or_null(op.q_norm, op.head_dim, op.qkv.device) &&
            is_vector_or_null(op.k_norm, op.head_dim, op.qkv.device),
        "q_norm {} k_norm {}", op.q_norm.to_string(), op.k_norm.to_string());
  CHECK(bool(op.rope.cos) == bool(op.rope.sin), "cos without sin, or the reverse");
  if (op.rope.cos) {
    CHECK(op.rotary_dim > 0 && op.rotary_dim % 2 == 0 && op.rotary_dim <= op.head_dim, "rotary_dim {} of {}",
          op.rotary_dim, op.head_dim);
    for (const Tensor* t : {&op.rope.cos, &op.rope.sin}) {
      CHECK(is_matrix(*t, op.qkv.dim(0), op.rotary_dim / 2, op.qkv.device) && t->dim(1) == op.rotary_dim / 2,
            "angles {} for rotary_dim {}", t->to_string(), op.rotary_dim);
    }
  }
  CHECK(op.batch != nullptr);
  check_cache(op.k_cache, op.v_cache, op.kv_heads, op.batch->block_size, op.head_dim, op.qkv.device);
  check_scales(op.scales, op.k_cache.dtype);
  check_batch(op.batch, op.qkv.dim(0), op.k_cache.dim(0), false, 0, op.qkv.device);
}

void check(const PagedAttention& op) {
  check_heads(op.heads, op.kv_heads, op.head_dim);
  const int64_t width = int64_t{op.heads} * op.head_dim;
  CHECK(is_matrix(op.out, op.out.dim(0), width, op.out.device) && op.out.dim(1) == width,
        "out {} for {} columns", op.out.to_string(), width);
  CHECK(is_matrix(op.q, op.out.dim(0), width, op.out.device), "q {} for out {}", op.q.to_string(),
        op.out.to_string());
  CHECK(is_vector_or_null(op.sinks, op.heads, op.out.device), "sinks {} for {} heads", op.sinks.to_string(),
        op.heads);
  CHECK(op.window >= 0 && op.scale > 0, "window {} scale {}", op.window, op.scale);
  CHECK(op.batch != nullptr);
  check_cache(op.k_cache, op.v_cache, op.kv_heads, op.batch->block_size, op.head_dim, op.out.device);
  check_scales(op.scales, op.k_cache.dtype);
  check_batch(op.batch, op.out.dim(0), op.k_cache.dim(0), true, op.window, op.out.device);
}

template <>
std::span<const Impl<QkNormRopeStore>> impls<QkNormRopeStore>() {
  using Op = QkNormRopeStore;
  static const Impl<Op> list[] = {
#if defined(__x86_64__)
    {"rope_store.avx512", cpu::need_avx512<Op>,
     [](Stream& s, const Op& op) {
       cpu::qk_norm_rope_store(s, op, cpu::transform_head_avx512, cpu::store_kv_avx512);
     }},
    {"rope_store.avx2", cpu::need_avx2<Op>,
     [](Stream& s, const Op& op) {
       cpu::qk_norm_rope_store(s, op, cpu::transform_head_avx2, cpu::store_kv_avx2);
     }},
#endif
    {"rope_store.ref", accept_all<Op>,
     [](Stream& s, const Op& op) {
       cpu::qk_norm_rope_store(s, op, cpu::transform_head_ref, cpu::store_kv_ref);
     }},
  };
  return list;
}

template <>
std::span<const Impl<PagedAttention>> impls<PagedAttention>() {
  using Op = PagedAttention;
  static const Impl<Op> list[] = {
#if defined(__x86_64__)
    {"attention.amx", refuse_amx,
     [](Stream& s, const Op& op) {
       cpu::paged_attention(s, op, {cpu::attend_amx, 128});
     }},
    {"attention.avx512", cpu::need_avx512<Op>,
     [](Stream& s, const Op& op) {
       cpu::paged_attention(s, op, {cpu::attend_avx512, 64});
     }},
    {"attention.avx2", cpu::need_avx2<Op>,
     [](Stream& s, const Op& op) {
       cpu::paged_attention(s, op, {cpu::attend_avx2, 64});
     }},
#endif
    {"attention.ref", accept_all<Op>, cpu::paged_attention_ref},
  };
  return list;
}

}  // namespace atom::ops
