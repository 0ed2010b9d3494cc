#include "ops/cpu/linear_rows.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "tensor/buffer.h"

namespace atom::ops {
namespace {

constexpr int64_t kGateTokens = 256;  // tokens of one pass over a gated chunk: keeps its scratch in L2

struct Product {
  const RowKernel& kernel;
  const Weight& w;
  Activations x;
  const void* prepared;
};

Activations activations(const Tensor& x) { return {x.as<float>(), x.strides[0], x.dim(0), x.dim(1)}; }

void prepare(Stream& stream, const RowKernel& kernel, const Activations& x, void* prepared) {
  if (kernel.prepare == nullptr) return;
  constexpr int64_t kSerial = 32768;  // elements that take about as long as waking the team
  if (x.tokens * x.cols <= kSerial) {
    kernel.prepare(x, 0, x.tokens, prepared);
  } else {
    const int64_t tiles = (x.tokens + kTokenTile - 1) / kTokenTile;
    stream.pool().parallel_for(tiles, 1, [&](int64_t begin, int64_t end) {
      kernel.prepare(x, begin * kTokenTile, std::min(end * kTokenTile, x.tokens), prepared);
    });
  }
}

// Rows of one chunk of a product with `rows` rows, of `total` that are dealt together: a few chunks per
// thread for balance, none so small that its start costs, none so large that it leaves L2 between two blocks
// of tokens.
int64_t chunk_rows(const Stream& stream, const RowKernel& kernel, int64_t total, int64_t rows,
                   int64_t row_bytes) {
  constexpr int64_t kMaxBytes = 768 << 10;
  const int64_t share = std::min(rows, total / (stream.pool().size() * int64_t{8}) + 1);
  const int64_t most = std::max<int64_t>(1, kMaxBytes / std::max<int64_t>(1, row_bytes));
  const int64_t tile = kernel.row_tile;
  return (std::min(share, most) + tile - 1) / tile * tile;
}

// Deals [0, rows) in chunks so that every thread first reads a run of neighbours of its own, from its start
// to its end: one token streams the weights once, and memory delivers long runs fastest. Who is done helps
// the others.
template <class Fn>
void deal_runs(ThreadPool& pool, int64_t rows, int64_t chunk, const Fn& fn) {
  constexpr int kMaxMembers = 128;
  struct alignas(64) Next {
    std::atomic<int64_t> chunk{0};
  };
  const int64_t chunks = (rows + chunk - 1) / chunk;
  if (pool.size() == 1 || pool.size() > kMaxMembers || chunks < pool.size())
    return pool.parallel_for(rows, chunk, fn);
  Next next[kMaxMembers];  // by owner of a run
  pool.run([&](int member, int members) {
    for (int i = 0; i < members; ++i) {
      const int owner = (member + i) % members;
      const int64_t first = chunks * owner / members, end = chunks * (owner + 1) / members;
      for (int64_t c; (c = first + next[owner].chunk.fetch_add(1, std::memory_order_relaxed)) < end;) {
        fn(c * chunk, std::min((c + 1) * chunk, rows));
      }
    }
  });
}

int64_t average_row_bytes(const Weight& w) {
  int64_t bytes = 0;
  for (const WeightPart& part : w.parts) bytes += part.bytes();
  return bytes / std::max<int64_t>(1, w.rows);
}

// out[t, i] of weight rows [begin, end), i counting from begin, across the parts they fall in.
void compute(const Product& p, int64_t begin, int64_t end, int64_t first_token, int64_t tokens, float* out,
             int64_t out_stride) {
  std::byte* scratch = p.kernel.scratch_bytes == nullptr
                           ? nullptr
                           : thread_scratch(kKernelScratch, p.kernel.scratch_bytes(p.w.cols));
  int64_t part_begin = 0;
  for (const WeightPart& part : p.w.parts) {
    const int64_t part_end = part_begin + part.data.dim(0);
    const int64_t from = std::max(begin, part_begin), to = std::min(end, part_end);
    if (from < to) {
      RowJob job = job_of(part, from - part_begin, to - from);
      job.x = p.x;
      job.prepared = p.prepared;
      job.first_token = first_token;
      job.tokens = tokens;
      job.scratch = scratch;
      job.out = out + (from - begin);
      job.out_stride = out_stride;
      p.kernel.rows(job);
    }
    part_begin = part_end;
  }
}

void add_bias(const Tensor& bias, int64_t begin, int64_t end, int64_t tokens, float* out, int64_t stride) {
  if (!bias) return;
  const float* b = bias.as<float>() + begin;
  for (int64_t t = 0; t < tokens; ++t, out += stride) {
    for (int64_t i = 0; i < end - begin; ++i) out[i] += b[i];
  }
}

}  // namespace

RowJob job_of(const WeightPart& part, int64_t begin, int64_t rows) {
  const Tensor& data = part.data;
  RowJob job{};
  job.type = data.dtype;
  job.w = data.row_bytes(begin);
  job.w_stride = dtype_bytes(data.dtype, data.strides[0]);
  job.rows = rows;
  job.x.cols = data.dim(1);
  if (!part.scale) return job;
  const BlockScales& s = part.scale;
  const int64_t first = begin + s.first_row;
  job.scales = {s.values.row_bytes(first / s.block_rows),
                dtype_bytes(s.values.dtype, s.values.strides[0]),
                s.block_rows,
                s.block_cols,
                first % s.block_rows,
                s.first_col};
  return job;
}

std::byte* thread_scratch(int slot, int64_t bytes) {
  thread_local std::array<Buffer, kScratchSlots> buffers;
  Buffer& buffer = buffers[slot];
  if (buffer.bytes() < bytes) buffer = Buffer(bytes + bytes / 2);
  return static_cast<std::byte*>(buffer.data());
}

namespace {

// How a product of either kind is cut: its independent rows, what one of them reads, and the work on a range.
int64_t split_rows(const Linear& op) { return op.w.rows; }
int64_t split_rows(const GatedUp& op) { return op.w.rows / 2; }
int64_t split_row_bytes(const Linear& op) { return average_row_bytes(op.w); }
int64_t split_row_bytes(const GatedUp& op) { return 2 * average_row_bytes(op.w); }

void compute_split(const Product& product, const Linear& op, int64_t begin, int64_t end) {
  float* out = op.out.as<float>() + begin;
  compute(product, begin, end, 0, product.x.tokens, out, op.out.strides[0]);
  add_bias(op.bias, begin, end, product.x.tokens, out, op.out.strides[0]);
}

void compute_split(const Product& product, const GatedUp& op, int64_t begin, int64_t end) {
  const int64_t n = end - begin, half = op.w.rows / 2;
  for (int64_t t0 = 0; t0 < product.x.tokens; t0 += kGateTokens) {
    const int64_t tokens = std::min(kGateTokens, product.x.tokens - t0);
    auto* up = reinterpret_cast<float*>(thread_scratch(kGateScratch, tokens * n * 4));
    float* gate = op.out.row<float>(t0) + begin;
    const int64_t stride = op.out.strides[0];
    compute(product, begin, end, t0, tokens, gate, stride);
    compute(product, half + begin, half + end, t0, tokens, up, n);
    add_bias(op.bias, begin, end, tokens, gate, stride);
    add_bias(op.bias, half + begin, half + end, tokens, up, n);
    for (int64_t t = 0; t < tokens; ++t) product.kernel.silu_mul(gate + t * stride, up + t * n, n);
  }
}

template <class Op>
void run_one(Stream& stream, const RowKernel& kernel, const Op& op) {
  const Activations x = activations(op.x);
  const int64_t rows = split_rows(op);
  if (x.tokens == 0 || rows == 0) return;
  void* memory = kernel.prepare == nullptr
                     ? nullptr
                     : thread_scratch(kPreparedScratch, kernel.prepared_bytes(x.tokens, x.cols));
  prepare(stream, kernel, x, memory);
  const Product product{kernel, op.w, x, memory};
  const int64_t chunk = chunk_rows(stream, kernel, rows, rows, split_row_bytes(op));
  const auto work = [&](int64_t begin, int64_t end) { compute_split(product, op, begin, end); };
  if (x.tokens == 1) return deal_runs(stream.pool(), rows, chunk, work);
  stream.pool().parallel_for(rows, chunk, work);
}

template <class Op>
void run_group(Stream& stream, const RowKernel& kernel, std::span<const Op> ops) {
  struct Job {
    size_t op;
    int64_t begin, end;
  };
  thread_local std::vector<Job> jobs;
  thread_local std::vector<int64_t> offsets;  // of each op's prepared activations
  int64_t prepared_bytes = 0, total_rows = 0;
  offsets.clear();
  for (const Op& op : ops) {
    offsets.push_back(prepared_bytes);
    total_rows += split_rows(op);
    if (kernel.prepare == nullptr) continue;
    prepared_bytes += (kernel.prepared_bytes(op.x.dim(0), op.x.dim(1)) + 63) / 64 * 64;
  }
  std::byte* memory = prepared_bytes > 0 ? thread_scratch(kPreparedScratch, prepared_bytes) : nullptr;
  jobs.clear();
  for (size_t i = 0; i < ops.size(); ++i) {
    const int64_t rows = split_rows(ops[i]);
    if (ops[i].x.dim(0) == 0 || rows == 0) continue;
    if (memory != nullptr) prepare(stream, kernel, activations(ops[i].x), memory + offsets[i]);
    const int64_t chunk = chunk_rows(stream, kernel, total_rows, rows, split_row_bytes(ops[i]));
    for (int64_t r = 0; r < rows; r += chunk) jobs.push_back({i, r, std::min(r + chunk, rows)});
  }
  const std::span<const Job> list = jobs;  // the team must not see its own thread's list
  const std::span<const int64_t> places = offsets;
  stream.pool().parallel_for(static_cast<int64_t>(list.size()), 1, [&, memory](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      const Op& op = ops[list[j].op];
      const void* prepared = memory == nullptr ? nullptr : memory + places[list[j].op];
      compute_split(Product{kernel, op.w, activations(op.x), prepared}, op, list[j].begin, list[j].end);
    }
  });
}

}  // namespace

void run_rows(Stream& stream, const RowKernel& kernel, const Linear& op) { run_one(stream, kernel, op); }
void run_rows(Stream& stream, const RowKernel& kernel, const GatedUp& op) { run_one(stream, kernel, op); }
void run_rows(Stream& stream, const RowKernel& kernel, std::span<const Linear> ops) {
  run_group(stream, kernel, ops);
}
void run_rows(Stream& stream, const RowKernel& kernel, std::span<const GatedUp> ops) {
  run_group(stream, kernel, ops);
}

}  // namespace atom::ops
