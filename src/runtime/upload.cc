#include "runtime/upload.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "runtime/account.h"

namespace atom {
namespace {

constexpr int64_t kChunk = 8 << 20;  // bytes of one copy
constexpr int kMaxThreads = 16;      // more do not read faster, and each holds two chunks of pinned memory
constexpr int64_t kAlign = 256;      // bytes; of a parameter in device memory

// Rows of a host tensor that go to dense device memory.
struct Job {
  Tensor from;
  std::byte* to;
};

bool is_plain(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

// The type that a piece of a matrix is stored in, or that dummy weights give it; nothing if it is missing.
std::optional<DType> stored_type(const ParamEntry& param, const Piece& piece, const Checkpoint* checkpoint) {
  if (checkpoint != nullptr) {
    const PieceAccount account = resolve(param, piece, *checkpoint);
    return account.problem.empty() ? std::optional(account.dtype()) : std::nullopt;
  }
  for (const Source& source : piece.any_of) {
    if (source.usual_type) return source.usual_type;
  }
  return std::nullopt;
}

void add_jobs(std::vector<Job>& jobs, const Tensor& from, std::byte* to) {
  const int64_t row_bytes = std::max<int64_t>(1, dtype_bytes(from.dtype, from.dim(1)));
  const int64_t rows_per_job = std::max<int64_t>(1, kChunk / row_bytes);
  for (int64_t r = 0; r < from.dim(0); r += rows_per_job) {
    jobs.push_back({from.rows(r, std::min(rows_per_job, from.dim(0) - r)), to + r * row_bytes});
  }
}

// One of the two places of a thread from which chunks travel.
struct Stage {
  gpu::Queue queue;
  Buffer pinned;
  Stage(Device device, int64_t bytes) : queue(device, gpu::Queue::Mode::run), pinned(Buffer::pinned(bytes)) {}

  void send(const Job& job) {
    queue.wait();  // until what was sent from here last has arrived
    const int64_t row_bytes = dtype_bytes(job.from.dtype, job.from.dim(1));
    auto* at = static_cast<std::byte*>(pinned.data());
    if (job.from.contiguous()) {
      std::memcpy(at, job.from.data, static_cast<size_t>(job.from.bytes()));
    } else {
      for (int64_t r = 0; r < job.from.dim(0); ++r) {
        std::memcpy(at + r * row_bytes, job.from.row_bytes(r), static_cast<size_t>(row_bytes));
      }
    }
    queue.copy_to_device(job.to, pinned.data(), job.from.bytes());
  }
};

void run(const std::vector<Job>& jobs, Device device, const LoadOptions& options) {
  int64_t total = 0, largest = 0, done = 0;
  for (const Job& job : jobs) {
    total += job.from.bytes();
    largest = std::max(largest, job.from.bytes());
  }
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  auto work = [&] {
    try {
      Stage stages[2] = {{device, largest}, {device, largest}};
      int turn = 0;
      for (size_t i; (i = next.fetch_add(1)) < jobs.size(); turn ^= 1) {
        stages[turn].send(jobs[i]);
        if (!options.progress) continue;
        const std::lock_guard lock(mutex);
        options.progress(done += jobs[i].from.bytes(), total);
      }
      for (Stage& stage : stages) stage.queue.wait();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = jobs.size();
    }
  };
  const auto threads =
      std::min<size_t>({static_cast<size_t>(std::max(1, options.threads)), kMaxThreads, jobs.size()});
  std::vector<std::thread> team;
  for (size_t i = 1; i < threads; ++i) team.emplace_back(work);
  work();
  for (std::thread& t : team) t.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace

std::string upload_problem(const ModelTables& tables, const Checkpoint* checkpoint) {
  for (const ParamEntry& param : tables.params) {
    if (param.kind != ParamEntry::Kind::matrix) continue;
    for (const Piece& piece : param.pieces) {
      const std::optional<DType> type = stored_type(param, piece, checkpoint);
      if (!type || is_plain(*type)) continue;
      return fmt::format("{}: stored as {}{}, which no GPU kernel reads yet", param.path, dtype_name(*type),
                         is_scaled_type(*type) ? " with scales" : "");
    }
  }
  return "";
}

Weights upload_weights(ModelTables& tables, Weights host, const LoadOptions& options, Device device) {
  Weights weights;
  weights.bytes = host.bytes;
  std::vector<Job> jobs;
  // All vectors lie in one allocation, each matrix in its own.
  int64_t vector_bytes = 0;
  for (const ParamEntry& param : tables.params) {
    if (param.kind == ParamEntry::Kind::vector)
      vector_bytes += (param.value.bytes() + kAlign - 1) / kAlign * kAlign;
  }
  auto* vectors = static_cast<std::byte*>(weights.buffers.emplace_back(vector_bytes, device).data());
  for (ParamEntry& param : tables.params) {
    if (param.kind == ParamEntry::Kind::vector) {
      const int64_t n = param.value.elements();
      add_jobs(jobs, param.value.reshaped({1, n}), vectors);
      param.value = make_tensor(vectors, DType::f32, {n}, device);
      vectors += (param.value.bytes() + kAlign - 1) / kAlign * kAlign;
      continue;
    }
    int64_t bytes = 0, rows = 0;
    for (const ops::WeightPart& part : param.parts) {
      CHECK(is_plain(part.data.dtype) && !part.scale, "{}: {}", param.path, part.data.to_string());
      bytes += part.data.bytes();
      rows += part.data.dim(0);
    }
    auto* to = static_cast<std::byte*>(weights.buffers.emplace_back(bytes, device).data());
    const DType dtype = param.parts.front().data.dtype;
    const int64_t cols = param.parts.front().data.dim(1);
    const bool one_type = std::all_of(param.parts.begin(), param.parts.end(),
                                      [&](const ops::WeightPart& part) { return part.data.dtype == dtype; });
    std::byte* at = to;
    for (ops::WeightPart& part : param.parts) {
      add_jobs(jobs, part.data, at);
      part.data = make_tensor(at, part.data.dtype, {part.data.dim(0), cols}, device);
      at += part.data.bytes();
    }
    if (one_type) param.parts = {{make_tensor(to, dtype, {rows, cols}, device), {}}};
  }
  run(jobs, device, options);
  return weights;
}

}  // namespace atom
