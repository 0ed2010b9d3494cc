// The expanded form of latent attention: keys and values of a few heads at a time are written out for all
// positions of a sequence, then it is ordinary attention with narrower heads. It costs one product per
// position that the absorbed form does not have, and saves work per pair of row and position: prompts win,
// single rows behind a long context lose. The choice is made sequence by sequence.
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/dequant.h"
#include "ops/cpu/kv_slots.h"
#include "ops/cpu/latent.h"
#include "ops/cpu/rope_store.h"
#include "tensor/buffer.h"

namespace atom::ops::cpu {
namespace {

constexpr int64_t kExpandedFloats = 8 << 20;  // of one group of heads: keys and values
constexpr int64_t kKeyTile = 256;             // positions expanded at a time

float* grown(Buffer& buffer, int64_t floats) {
  if (buffer.bytes() < floats * 4) buffer = Buffer(floats * 4);
  return static_cast<float*>(buffer.data());
}

// Lanes of a head that holds a key or a value.
int32_t padded_dim(const LatentShape& s) { return std::max(s.query_dim(), s.v_dim); }

bool sees_everything(const LatentAttention& op, const AttentionSequence& s) {
  return !op.selected || int64_t{s.context} + s.rows <= op.selected.dim(1);
}

bool pays(const LatentAttention& op, const AttentionSequence& sequence) {
  const LatentShape& s = op.shape;
  const int64_t rows = sequence.rows, context = sequence.context;
  const int64_t pairs = rows * context + rows * (rows + 1) / 2;
  const int64_t saved = pairs * 4 * (s.entry_dim() - padded_dim(s));
  return rows > 1 && saved > context * 2 * s.kv_rank * (s.nope_dim + s.v_dim);
}

bool expands(const LatentAttention& op, const AttentionSequence& s) {
  return sees_everything(op, s) && pays(op, s);
}

struct Memory {
  Buffer latents, products, k, v, q, out;
};

class Expansion {
 public:
  Expansion(Stream& stream, const LatentAttention& op, const AttentionSequence& sequence, Memory& memory)
      : stream_(stream),
        op_(op),
        s_(op.shape),
        sequence_(sequence),
        memory_(memory),
        keys_(int64_t{sequence.context} + sequence.rows),
        dim_(padded_dim(op.shape)),
        dtype_(op.precision == Precision::exact ? DType::f32 : op.cache.dtype) {}

  void operator()() {
    read_latents();
    const int64_t group = std::clamp<int64_t>(kExpandedFloats / (2 * keys_ * dim_), 1, s_.heads);
    for (int64_t h = 0; h < s_.heads; h += group) attend(h, std::min(group, s_.heads - h));
  }

 private:
  void read_latents() {
    latents_ =
        make_tensor(grown(memory_.latents, keys_ * s_.entry_dim()), DType::f32, {keys_, s_.entry_dim()});
    stream_.pool().parallel_for(keys_, 64, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        dequantize_row(op_.cache.dtype, kv_slot(op_.cache, sequence_.block_table, u, 0),
                       latents_.row<float>(u), s_.entry_dim());
      }
    });
  }

  void attend(int64_t first_head, int64_t heads) {
    k_ = make_tensor(grown(memory_.k, heads * keys_ * dim_), dtype_, {1, heads, keys_, dim_});
    v_ = make_tensor(grown(memory_.v, heads * keys_ * dim_), dtype_, {1, heads, keys_, dim_});
    for (int64_t u = 0; u < keys_; u += kKeyTile) expand(first_head, heads, u, std::min(kKeyTile, keys_ - u));

    const int64_t rows = sequence_.rows;
    const Tensor q = make_tensor(grown(memory_.q, rows * heads * dim_), DType::f32, {rows, heads * dim_});
    const Tensor out = make_tensor(grown(memory_.out, rows * heads * dim_), DType::f32, {rows, heads * dim_});
    copy_heads(q, 0, dim_, op_.q.rows(sequence_.first_row, rows), first_head, s_.query_dim(), heads,
               s_.query_dim());
    const int32_t table[] = {0};
    const AttentionSequence whole{0, sequence_.rows, sequence_.context, table};
    const AttentionBatch batch{{&whole, 1}, static_cast<int32_t>(keys_), sequence_.rows};
    run(stream_, PagedAttention{.out = out,
                                .q = q,
                                .k_cache = k_,
                                .v_cache = v_,
                                .batch = &batch,
                                .heads = static_cast<int32_t>(heads),
                                .kv_heads = static_cast<int32_t>(heads),
                                .head_dim = dim_,
                                .scale = op_.scale});
    copy_heads(op_.out.rows(sequence_.first_row, rows), first_head, s_.v_dim, out, 0, dim_, heads, s_.v_dim);
  }

  // The first `lanes` lanes of every head; what is left of a head's `to_dim` lanes becomes zero.
  void copy_heads(const Tensor& to, int64_t to_head, int64_t to_dim, const Tensor& from, int64_t from_head,
                  int64_t from_dim, int64_t heads, int64_t lanes) const {
    stream_.pool().parallel_for(to.dim(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          float* x = to.row<float>(t) + (to_head + h) * to_dim;
          std::memcpy(x, from.row<float>(t) + (from_head + h) * from_dim, lanes * sizeof(float));
          std::fill(x + lanes, x + to_dim, 0.0f);
        }
      }
    });
  }

  // Keys and values of positions [first, first + count).
  void expand(int64_t first_head, int64_t heads, int64_t first, int64_t count) {
    const int64_t head_rows = s_.nope_dim + s_.v_dim;
    const WeightPart part = op_.kv_b.parts[0].rows(first_head * head_rows, heads * head_rows);
    const Tensor products = make_tensor(grown(memory_.products, count * heads * head_rows), DType::f32,
                                        {count, heads * head_rows});
    run(stream_, Linear{.out = products,
                        .x = latents_.rows(first, count).cols(0, s_.kv_rank),
                        .w = {{&part, 1}, heads * head_rows, s_.kv_rank},
                        .precision = op_.precision});
    stream_.pool().parallel_for(count, 16, [&](int64_t begin, int64_t end) {
      thread_local std::vector<float> row;
      row.assign(dim_, 0);
      for (int64_t i = begin; i < end; ++i) {
        const float* k_pe = latents_.row<float>(first + i) + s_.kv_rank;
        for (int64_t h = 0; h < heads; ++h) {
          const float* product = products.row<float>(i) + h * head_rows;
          store(k_, h, first + i, row, {product, static_cast<size_t>(s_.nope_dim)},
                {k_pe, static_cast<size_t>(s_.rope_dim)});
          store(v_, h, first + i, row, {product + s_.nope_dim, static_cast<size_t>(s_.v_dim)}, {});
        }
      }
    });
  }

  void store(const Tensor& cache, int64_t head, int64_t position, std::vector<float>& row,
             std::span<const float> a, std::span<const float> b) const {
    std::copy(b.begin(), b.end(), std::copy(a.begin(), a.end(), row.begin()));
    std::fill(row.begin() + static_cast<int64_t>(a.size() + b.size()), row.end(), 0.0f);
    const int32_t table[] = {0};
    store_kv_ref(kv_type(dtype_), kv_slot(cache, table, position, head), row.data(), dim_);
  }

  Stream& stream_;
  const LatentAttention& op_;
  const LatentShape& s_;
  const AttentionSequence& sequence_;
  Memory& memory_;
  const int64_t keys_;
  const int32_t dim_;
  const DType dtype_;
  Tensor latents_;  // [keys, entry_dim] f32
  Tensor k_, v_;    // [1, heads, keys, dim]
};

// Sequences [begin, end) in the absorbed form.
void absorb(Stream& stream, const LatentAttention& op, int64_t begin, int64_t end) {
  std::vector<AttentionSequence> sequences;
  const int32_t first = op.batch->sequences[begin].first_row;
  int32_t rows = 0;
  for (int64_t i = begin; i < end; ++i) {
    AttentionSequence s = op.batch->sequences[i];
    s.first_row -= first;
    rows += s.rows;
    sequences.push_back(s);
  }
  const AttentionBatch batch{sequences, op.batch->block_size, rows};
  LatentAttention part = op;
  part.q = op.q.rows(first, rows);
  part.out = op.out.rows(first, rows);
  if (op.selected) part.selected = op.selected.rows(first, rows);
  part.batch = &batch;
  latent_absorbed(stream, part);
}

}  // namespace

const char* refuse_latent_expanded(const Stream& stream, const LatentAttention& op) {
  for (const AttentionSequence& s : op.batch->sequences) {
    if (expands(op, s)) {
      return padded_dim(op.shape) <= kMaxHeadDim ? refuse_latent_absorbed(stream, op)
                                                 : "heads are wider than attention's may be";
    }
  }
  return "pays for no sequence";
}

void latent_expanded(Stream& stream, const LatentAttention& op) {
  thread_local Memory memory;
  const auto sequences = op.batch->sequences;
  const auto count = static_cast<int64_t>(sequences.size());
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    end = begin + 1;
    if (expands(op, sequences[begin])) {
      Expansion(stream, op, sequences[begin], memory)();
      continue;
    }
    while (end < count && !expands(op, sequences[end])) ++end;
    absorb(stream, op, begin, end);
  }
}

}  // namespace atom::ops::cpu
