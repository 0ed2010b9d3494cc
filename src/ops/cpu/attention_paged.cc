// Deals paged attention to the team: rows are cut into tiles, tiles of long contexts into pieces when there
// are too few of them, and the pieces are merged by whoever finishes last. One parallel section per call.
#include "ops/cpu/attention_paged.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "ops/cpu/kv_slots.h"
#include "tensor/buffer.h"

namespace atom::ops::cpu {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int64_t kMinPieceKeys = 256;
constexpr int64_t kSerialWork = 1 << 16;  // key elements below which the team is not woken

// Rows of one sequence against a range of keys, for every kv head.
struct Task {
  const AttentionSequence* sequence;
  int32_t first, rows;    // within the sequence
  int64_t begin, end;     // keys
  int32_t piece, pieces;  // of the same rows
  int64_t partial;        // where piece 0's results of kv head 0 start; unused for one piece
  int64_t counter;        // of kv head 0
};

// What one thread keeps between calls. Only grows.
struct Plan {
  std::vector<Task> tasks;
  Buffer partials;
  std::unique_ptr<std::atomic<int32_t>[]> counters;
  int64_t counter_capacity = 0;
};

float* grown(Buffer& buffer, int64_t floats) {
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  if (buffer.bytes() < bytes) buffer = Buffer(bytes);
  return static_cast<float*>(buffer.data());
}

// Floats of one job's results: accumulators, then maxima, then sums.
int64_t result_floats(int64_t vectors, int64_t stride) {
  return vectors * stride + (2 * vectors + 15) / 16 * 16;
}

class Run {
 public:
  Run(Stream& stream, const PagedAttention& op, const AttentionKernel& kernel)
      : stream_(stream),
        op_(op),
        kernel_(kernel),
        group_(op.heads / op.kv_heads),
        stride_(attention_stride(op.head_dim)) {}

  void operator()() {
    thread_local Plan plan;
    plan_ = &plan;
    make_tasks();
    const auto jobs = static_cast<int64_t>(plan.tasks.size()) * op_.kv_heads;
    // Late tiles see the most keys, so they go first.
    auto run_job = [this, jobs](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) run(jobs - 1 - i);
    };
    if (work_ < kSerialWork) return run_job(0, jobs);
    stream_.pool().parallel_for(jobs, 1, run_job);
  }

 private:
  int32_t tile_rows() const { return std::max(1, kernel_.max_vectors / group_); }

  int64_t first_key(int64_t position) const {
    return op_.window == 0 ? 0 : std::max<int64_t>(0, position - op_.window + 1);
  }

  void make_tasks() {
    int64_t tiles = 0;
    for (const AttentionSequence& s : op_.batch->sequences) tiles += (s.rows + tile_rows() - 1) / tile_rows();
    // Three jobs per member balance well enough.
    const int64_t members = stream_.pool().size();
    const int64_t wanted = members == 1 || tiles == 0 ? 1 : (3 * members - 1) / (tiles * op_.kv_heads) + 1;
    int64_t partial = 0, counter = 0;
    plan_->tasks.clear();
    for (const AttentionSequence& s : op_.batch->sequences) {
      for (int32_t first = 0; first < s.rows; first += tile_rows()) {
        const int32_t rows = std::min(tile_rows(), s.rows - first);
        const int64_t begin = first_key(int64_t{s.context} + first);
        const int64_t end = int64_t{s.context} + first + rows;
        work_ += (end - begin) * op_.head_dim * op_.kv_heads;
        const int64_t pieces = std::clamp<int64_t>((end - begin) / kMinPieceKeys, 1, wanted);
        for (int64_t i = 0; i < pieces; ++i) {
          plan_->tasks.push_back({&s, first, rows, begin + (end - begin) * i / pieces,
                                  begin + (end - begin) * (i + 1) / pieces, static_cast<int32_t>(i),
                                  static_cast<int32_t>(pieces), partial, counter});
        }
        if (pieces > 1) {
          partial += pieces * op_.kv_heads * result_floats(int64_t{rows} * group_, stride_);
          counter += op_.kv_heads;
        }
      }
    }
    if (partial > 0) partials_ = grown(plan_->partials, partial);
    if (counter > plan_->counter_capacity) {
      plan_->counters = std::make_unique<std::atomic<int32_t>[]>(static_cast<size_t>(counter));
      plan_->counter_capacity = counter;
    }
    for (int64_t i = 0; i < counter; ++i) plan_->counters[i].store(0, std::memory_order_relaxed);
  }

  void run(int64_t index) {
    thread_local Buffer scratch;
    const Task& task = plan_->tasks[index / op_.kv_heads];
    const int64_t head = index % op_.kv_heads;
    const AttentionSequence& s = *task.sequence;
    const int64_t vectors = int64_t{task.rows} * group_;
    const int64_t results = result_floats(vectors, stride_);
    float* own = grown(scratch, results + attention_scratch(op_.head_dim, vectors));
    const int64_t element = dtype_bytes(op_.k_cache.dtype, 1);

    AttentionJob job;
    job.q = op_.q.row<float>(s.first_row + task.first) + head * group_ * op_.head_dim;
    job.q_stride = op_.q.strides[0];
    job.rows = task.rows;
    job.group = group_;
    job.head_dim = op_.head_dim;
    job.first_position = int64_t{s.context} + task.first;
    job.begin = task.begin;
    job.end = task.end;
    job.window = op_.window;
    job.scale = op_.scale * op_.scales.k;
    job.k = op_.k_cache.as<char>() + head * op_.k_cache.strides[1] * element;
    job.v = op_.v_cache.as<char>() + head * op_.v_cache.strides[1] * element;
    job.k_block_bytes = op_.k_cache.strides[0] * element;
    job.v_block_bytes = op_.v_cache.strides[0] * element;
    job.block_table = s.block_table;
    job.block_size = op_.batch->block_size;
    job.type = kv_type(op_.k_cache.dtype);
    float* const shared =
        task.pieces == 1 ? nullptr : partials_ + task.partial + head * task.pieces * results;
    job.acc = shared == nullptr ? own : shared + task.piece * results;
    job.max = job.acc + vectors * stride_;
    job.sum = job.max + vectors;
    job.scratch = own + results;
    kernel_.attend(job);

    if (shared != nullptr) {
      std::atomic<int32_t>& done = plan_->counters[task.counter + head];
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < task.pieces) return;
      merge(shared, task.pieces, vectors, results);
      job.acc = shared;
      job.max = job.acc + vectors * stride_;
      job.sum = job.max + vectors;
    }
    write(job, s.first_row + task.first, head);
  }

  // Adds the results of pieces 1.. to those of piece 0, in order.
  void merge(float* parts, int32_t pieces, int64_t vectors, int64_t results) const {
    for (int64_t v = 0; v < vectors; ++v) {
      float* acc = parts + v * stride_;
      float* max = parts + vectors * stride_ + v;
      float* sum = max + vectors;
      float top = *max;
      for (int32_t i = 1; i < pieces; ++i) top = std::max(top, max[i * results]);
      const float own = std::exp2(*max - top);
      *sum *= own;
      for (int64_t d = 0; d < op_.head_dim; ++d) acc[d] *= own;
      for (int32_t i = 1; i < pieces; ++i) {
        const float factor = std::exp2(max[i * results] - top);
        *sum += factor * sum[i * results];
        for (int64_t d = 0; d < op_.head_dim; ++d) acc[d] += factor * acc[i * results + d];
      }
      *max = top;
    }
  }

  void write(const AttentionJob& job, int64_t first_row, int64_t head) const {
    for (int64_t v = 0; v < job.vectors(); ++v) {
      const int64_t h = head * group_ + v % group_;
      float numerator = 1, denominator = job.sum[v];
      if (op_.sinks) {
        const float sink = op_.sinks.as<float>()[h] * kLog2E;
        const float top = std::max(job.max[v], sink);
        numerator = std::exp2(job.max[v] - top);
        denominator = denominator * numerator + std::exp2(sink - top);
      }
      const float factor = numerator / denominator * op_.scales.v;
      const float* acc = job.acc + v * stride_;
      float* out = op_.out.row<float>(first_row + v / group_) + h * op_.head_dim;
      for (int64_t d = 0; d < op_.head_dim; ++d) out[d] = acc[d] * factor;
    }
  }

  Stream& stream_;
  const PagedAttention& op_;
  const AttentionKernel& kernel_;
  const int32_t group_;
  const int64_t stride_;
  Plan* plan_ = nullptr;
  float* partials_ = nullptr;
  int64_t work_ = 0;
};

}  // namespace

void paged_attention(Stream& stream, const PagedAttention& op, const AttentionKernel& kernel) {
  Run(stream, op, kernel)();
}

}  // namespace atom::ops::cpu
