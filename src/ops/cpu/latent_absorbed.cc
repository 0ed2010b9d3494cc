// The absorbed form of latent attention. With W_k moved to the query and W_v to the result, what is left is
// grouped-query attention with one key head that is also the value: the paged cache itself, or the selected
// entries copied into a small cache of the same layout.
// Rows are taken in tiles that bound the memory of the wide queries (heads * entry_dim floats each).
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/kv_slots.h"
#include "ops/cpu/latent.h"
#include "ops/cpu/rope_store.h"
#include "tensor/buffer.h"

namespace atom::ops::cpu {
namespace {

constexpr int64_t kWideFloats = 4 << 20;      // of one tile's queries
constexpr int64_t kGatheredBytes = 32 << 20;  // of copied entries

void* grown(Buffer& buffer, int64_t bytes) {
  if (buffer.bytes() < bytes) buffer = Buffer(bytes);
  return buffer.data();
}

// What the calling thread keeps between calls. Only grows.
struct Memory {
  Buffer q, out, gathered;
  std::vector<AttentionSequence> sequences;
  std::vector<int32_t> tables;
};

class Tile {
 public:
  Tile(Stream& stream, const LatentAttention& op, Memory& memory, int64_t begin, int64_t end)
      : stream_(stream),
        op_(op),
        memory_(memory),
        begin_(begin),
        end_(end),
        q_(wide(memory.q)),
        out_(wide(memory.out)) {}

  void operator()() {
    const LatentShape& s = op_.shape;
    const int32_t head_rows = s.nope_dim + s.v_dim;
    const Tensor q = op_.q.rows(begin_, end_ - begin_);
    run(stream_,
        HeadProject{q_, q, op_.kv_b, s.heads, head_rows, 0, s.nope_dim, s.query_dim(), s.entry_dim()});
    copy_rope_lanes(q);
    attend();
    run(stream_, HeadProject{op_.out.rows(begin_, end_ - begin_), out_, op_.kv_b, s.heads, head_rows,
                             s.nope_dim, s.v_dim, s.entry_dim(), s.v_dim, true});
  }

 private:
  Tensor wide(Buffer& buffer) const {
    const int64_t rows = end_ - begin_, cols = int64_t{op_.shape.heads} * op_.shape.entry_dim();
    return make_tensor(grown(buffer, rows * cols * 4), DType::f32, {rows, cols});
  }

  void copy_rope_lanes(const Tensor& q) const {
    const LatentShape& s = op_.shape;
    stream_.pool().parallel_for(q.dim(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t h = 0; h < s.heads; ++h) {
          std::memcpy(q_.row<float>(t) + h * s.entry_dim() + s.kv_rank,
                      q.row<float>(t) + h * s.query_dim() + s.nope_dim, s.rope_dim * sizeof(float));
        }
      }
    });
  }

  // Runs of rows that see everything, and of rows that see a selection.
  void attend() {
    if (!op_.selected) return attend_all(begin_, end_);
    const int64_t k = op_.selected.dim(1);
    int64_t first = begin_;
    bool sparse = false;
    auto flush = [&](int64_t end) {
      if (first < end) sparse ? attend_selected(first, end) : attend_all(first, end);
      first = end;
    };
    for_rows(*op_.batch, begin_, end_, [&](const AttentionSequence& s, int64_t row, int64_t t) {
      const bool now = s.context + row >= k;
      if (now != sparse) flush(t);
      sparse = now;
    });
    flush(end_);
  }

  void attend_all(int64_t begin, int64_t end) {
    std::vector<AttentionSequence>& sequences = memory_.sequences;
    sequences.clear();
    for_rows(*op_.batch, begin, end, [&](const AttentionSequence& s, int64_t row, int64_t t) {
      if (row == 0 || t == begin) {
        sequences.push_back(
            {static_cast<int32_t>(t - begin), 0, static_cast<int32_t>(s.context + row), s.block_table});
      }
      ++sequences.back().rows;
    });
    attend(op_.cache, sequences, op_.batch->block_size, begin, end);
  }

  void attend_selected(int64_t begin, int64_t end) {
    const int64_t k = op_.selected.dim(1);
    const int64_t entry_bytes = dtype_bytes(op_.cache.dtype, op_.shape.entry_dim());
    const int64_t most = std::max<int64_t>(1, kGatheredBytes / (k * entry_bytes));
    for (int64_t from = begin; from < end; from += most) {
      const int64_t to = std::min(from + most, end), rows = to - from;
      const Tensor gathered = make_tensor(grown(memory_.gathered, rows * k * entry_bytes), op_.cache.dtype,
                                          {rows, 1, k, op_.shape.entry_dim()});
      stream_.pool().parallel_for(rows, 1, [&](int64_t a, int64_t b) {
        for_rows(*op_.batch, from + a, from + b, [&](const AttentionSequence& s, int64_t row, int64_t t) {
          gather(s, s.context + row, op_.selected.row<int32_t>(t), k,
                 static_cast<std::byte*>(gathered.data) + (t - from) * k * entry_bytes, entry_bytes);
        });
      });
      // Every row is a sequence of k tokens in a block of its own.
      memory_.sequences.clear();
      memory_.tables.resize(rows);
      for (int64_t i = 0; i < rows; ++i) {
        memory_.tables[i] = static_cast<int32_t>(i);
        memory_.sequences.push_back(
            {static_cast<int32_t>(i), 1, static_cast<int32_t>(k - 1), &memory_.tables[i]});
      }
      attend(gathered, memory_.sequences, static_cast<int32_t>(k), from, to);
    }
  }

  void gather(const AttentionSequence& s, int64_t position, const int32_t* selected, int64_t k, std::byte* to,
              int64_t entry_bytes) const {
    for (int64_t i = 0; i < k; ++i) {
      CHECK(selected[i] >= 0 && selected[i] <= position, "position {} selected at {}", selected[i], position);
      std::memcpy(to + i * entry_bytes, kv_slot(op_.cache, s.block_table, selected[i], 0), entry_bytes);
    }
  }

  void attend(const Tensor& cache, std::span<const AttentionSequence> sequences, int32_t block_size,
              int64_t begin, int64_t end) const {
    const AttentionBatch batch{sequences, block_size, static_cast<int32_t>(end - begin)};
    run(stream_, PagedAttention{.out = out_.rows(begin - begin_, end - begin),
                                .q = q_.rows(begin - begin_, end - begin),
                                .k_cache = cache,
                                .v_cache = cache,
                                .batch = &batch,
                                .heads = op_.shape.heads,
                                .kv_heads = 1,
                                .head_dim = op_.shape.entry_dim(),
                                .scale = op_.scale});
  }

  Stream& stream_;
  const LatentAttention& op_;
  Memory& memory_;
  const int64_t begin_, end_;  // rows of the batch
  const Tensor q_, out_;       // [rows, heads * entry_dim]; of out the first kv_rank lanes of a head matter
};

}  // namespace

const char* refuse_latent_absorbed(const Stream&, const LatentAttention& op) {
  return op.shape.entry_dim() <= kMaxHeadDim ? nullptr : "entries are wider than attention's heads may be";
}

void latent_absorbed(Stream& stream, const LatentAttention& op) {
  thread_local Memory memory;
  const int64_t tokens = op.q.dim(0);
  const int64_t rows = std::max<int64_t>(1, kWideFloats / (int64_t{op.shape.heads} * op.shape.entry_dim()));
  for (int64_t begin = 0; begin < tokens; begin += rows) {
    Tile(stream, op, memory, begin, std::min(begin + rows, tokens))();
  }
}

}  // namespace atom::ops::cpu
