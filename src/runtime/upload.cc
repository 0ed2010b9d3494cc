#include "runtime/upload.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/run_jobs.h"
#include "ops/cpu/dequant.h"
#include "runtime/account.h"
#include "tensor/mxfp4_pieces.h"

namespace atom {
namespace {

constexpr int64_t kChunk = 8 << 20;  // bytes of one copy
constexpr int kMaxThreads = 16;      // more do not read faster, and each holds two chunks of pinned memory
constexpr int64_t kAlign = 256;      // bytes; of a parameter in device memory

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Rows of E8M0 scales begin at 16 bytes on the device, so that kernels can copy several; zeros fill the gaps.
int64_t pitch_of(DType dtype, int64_t cols) {
  const int64_t bytes = dtype_bytes(dtype, cols);
  return dtype == DType::e8m0 && cols > 1 ? (bytes + 15) / 16 * 16 : bytes;
}

// Rows of a host tensor that go to device memory, as plain numbers of type `as` if they are GGUF blocks, or
// with their scales in pieces.
struct Job {
  Tensor from;
  DType as;
  std::byte* to;
  Tensor scales = {};  // of mxfp4_8x64
  int64_t row_bytes() const { return dtype_bytes(as, from.dim(1)); }
  int64_t pitch() const { return pitch_of(as, from.dim(1)); }  // bytes between rows on the device
  int64_t bytes() const {
    return as == DType::mxfp4_8x64 ? piece_bytes(from.dim(0), from.dim(1)) : from.dim(0) * pitch();
  }
};

bool is_plain(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

// How a piece of a matrix is stored, or what dummy weights give it.
struct Storage {
  std::optional<DType> type;  // nothing: the piece is missing
  int64_t block_rows = 0, block_cols = 0;
  bool operator==(const Storage&) const = default;
};
Storage storage_of(const ParamEntry& param, const Piece& piece, const Checkpoint* checkpoint) {
  if (checkpoint != nullptr) {
    const PieceAccount account = resolve(param, piece, *checkpoint);
    if (!account.problem.empty()) return {};
    return {account.dtype(), account.block_rows, account.block_cols};
  }
  for (const Source& source : piece.any_of) {
    if (source.usual_type) return {source.usual_type};
  }
  return {};
}

// The matrix's path without the number of its expert.
std::string path_of_all_experts(const std::string& path) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = path.rfind(kExperts);
  if (at == std::string::npos) return path;
  const size_t number = at + kExperts.size(), end = path.find('.', number);
  return path.substr(0, number) + (end == std::string::npos ? "" : path.substr(end));
}

void add_jobs(std::vector<Job>& jobs, const Tensor& from, DType as, std::byte* to) {
  const Job all{from, as, to};
  const int64_t rows_per_job = std::max<int64_t>(1, kChunk / std::max<int64_t>(1, all.pitch()));
  for (int64_t r = 0; r < from.dim(0); r += rows_per_job) {
    jobs.push_back({from.rows(r, std::min(rows_per_job, from.dim(0) - r)), as, to + r * all.pitch()});
  }
}

void write_rows(const Job& job, std::byte* to) {
  const int64_t row_bytes = job.row_bytes(), cols = job.from.dim(1);
  if (job.as == DType::mxfp4_8x64) {
    cut_into_pieces(job.from, job.scales, to);
  } else if (is_block_type(job.from.dtype)) {
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < job.from.dim(0); ++r, to += row_bytes) {
      ops::dequantize_row(job.from.dtype, job.from.row_bytes(r), row.data(), cols);
      if (job.as == DType::f32) std::memcpy(to, row.data(), static_cast<size_t>(row_bytes));
      if (job.as != DType::bf16) continue;
      for (int64_t c = 0; c < cols; ++c) reinterpret_cast<uint16_t*>(to)[c] = f32_to_bf16(row[c]);
    }
  } else if (job.from.contiguous() && job.pitch() == row_bytes) {
    std::memcpy(to, job.from.data, static_cast<size_t>(job.bytes()));
  } else {
    for (int64_t r = 0; r < job.from.dim(0); ++r, to += job.pitch()) {
      std::memcpy(to, job.from.row_bytes(r), static_cast<size_t>(row_bytes));
      std::memset(to + row_bytes, 0, static_cast<size_t>(job.pitch() - row_bytes));
    }
  }
}

// One of the two places of a thread from which chunks travel.
struct Stage {
  gpu::Queue queue;
  Buffer pinned;
  Stage(Device device, int64_t bytes) : queue(device, gpu::Queue::Mode::run), pinned(Buffer::pinned(bytes)) {}

  void send(const Job& job) {
    queue.wait();  // until what was sent from here last has arrived
    write_rows(job, static_cast<std::byte*>(pinned.data()));
    queue.copy_to_device(job.to, pinned.data(), job.bytes());
  }
};

void run(const std::vector<Job>& jobs, Device device, const LoadOptions& options) {
  int64_t total = 0, largest = 0;
  for (const Job& job : jobs) {
    total += job.bytes();
    largest = std::max(largest, job.bytes());
  }
  JobProgress progress(options.progress, total);
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  auto work = [&] {
    try {
      Stage stages[2] = {{device, largest}, {device, largest}};
      int turn = 0;
      for (size_t i; (i = next.fetch_add(1)) < jobs.size(); turn ^= 1) {
        stages[turn].send(jobs[i]);
        progress.add(jobs[i].bytes());
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

// Whether Hopper's kernels for experts are to have a part of a matrix in pieces. Halves of it (gate and up)
// then begin with whole pieces, too.
bool goes_in_pieces(const ops::WeightPart& part) {
  const ops::BlockScales& s = part.scale;
  return part.data.dtype == DType::f4e2m1x2 && part.data.dim(0) % (2 * kPieceRows) == 0 &&
         part.data.dim(1) % 32 == 0 && s.block_rows == 1 && s.block_cols == 32 && s.first_col == 0;
}

// True if the columns of a part share their scales.
bool scaled_by_rows(const ops::WeightPart& part) {
  return part.scale.first_col + part.data.dim(1) <= part.scale.block_cols;
}

// True if the scales of `below` go on where those of `part` end.
bool scales_stack(const ops::WeightPart& part, const ops::WeightPart& below) {
  const ops::BlockScales &a = part.scale, &b = below.scale;
  if (!a || !b) return !a && !b;
  return (scaled_by_rows(part) && scaled_by_rows(below)) ||
         (a.block_rows == b.block_rows && a.block_cols == b.block_cols && a.first_col == b.first_col &&
          b.first_row == 0 && (a.first_row + part.data.dim(0)) % a.block_rows == 0);
}

// Puts matrices into one run of device memory, in the order of their declaration: experts lie at equal
// distances.
class Placer {
 public:
  // GGUF blocks become plain numbers of type `wide`. `pieces`: of experts' MXFP4.
  Placer(std::byte* memory, DType wide, bool pieces, Device device)
      : at_(memory), wide_(wide), pieces_(pieces), device_(device) {}

  // The most that place() takes for a matrix.
  static int64_t bytes_of(const ParamEntry& param, DType wide, bool pieces) {
    int64_t bytes = 0;
    if (pieces && in_pieces(param)) {
      for (const ops::WeightPart& part : param.parts)
        bytes += piece_bytes(part.data.dim(0), part.data.dim(1));
      return aligned(bytes);
    }
    for (const ops::WeightPart& part : param.parts) {
      bytes += aligned(dtype_bytes(type_of(part, wide), part.data.elements()));
      if (!part.scale) continue;
      const Tensor& scales = part.scale.values;
      bytes += aligned(scales.dim(0) * pitch_of(scales.dtype, scales.dim(1)) + 4 * part.data.dim(0));
    }
    return bytes;
  }

  void place(ParamEntry& param) {
    std::vector<ops::WeightPart>& parts = param.parts;
    if (pieces_ && in_pieces(param)) {
      parts = {place_pieces(parts)};
      return;
    }
    bool stack = true;
    for (size_t i = 1; i < parts.size(); ++i) {
      stack = stack && type_of(parts[i], wide_) == type_of(parts[0], wide_) &&
              scales_stack(parts[i - 1], parts[i]);
    }
    std::vector<ops::WeightPart> placed;
    const size_t together = stack ? parts.size() : 1;
    for (size_t i = 0; i < parts.size(); i += together) {
      placed.push_back(place_stack(std::span(parts).subspan(i, together)));
    }
    parts = std::move(placed);
  }

  std::vector<Job> jobs;

 private:
  static bool in_pieces(const ParamEntry& param) {
    return param.read_share < 1 && std::ranges::all_of(param.parts, goes_in_pieces);  // routed experts
  }

  static DType type_of(const ops::WeightPart& part, DType wide) {
    return is_block_type(part.data.dtype) ? wide : part.data.dtype;
  }

  // Tensors with equal columns, one below the other.
  Tensor stack(std::span<const Tensor> tensors, DType as) {
    int64_t rows = 0;
    std::byte* to = at_;
    for (const Tensor& t : tensors) {
      add_jobs(jobs, t, as, at_);
      at_ += t.dim(0) * pitch_of(as, t.dim(1));
      rows += t.dim(0);
    }
    at_ = to + aligned(at_ - to);
    const int64_t cols = tensors.front().dim(1);
    Tensor stacked = make_tensor(to, as, {rows, cols}, device_);
    if (as == DType::e8m0) stacked.strides[0] = pitch_of(as, cols);
    return stacked;
  }

  ops::WeightPart place_pieces(std::span<const ops::WeightPart> parts) {
    int64_t rows = 0;
    std::byte* to = at_;
    const int64_t cols = parts.front().data.dim(1), eight = piece_bytes(kPieceRows, cols);
    const int64_t rows_per_job = std::max<int64_t>(1, kChunk / eight) * kPieceRows;
    for (const ops::WeightPart& part : parts) {
      const int64_t all = part.data.dim(0);
      for (int64_t r = 0; r < all; r += rows_per_job) {
        const int64_t count = std::min(rows_per_job, all - r);
        jobs.push_back({part.data.rows(r, count), DType::mxfp4_8x64, at_,
                        part.scale.values.rows(r + part.scale.first_row, count).cols(0, cols / 32)});
        at_ += piece_bytes(count, cols);
      }
      rows += all;
    }
    at_ = to + aligned(at_ - to);
    return {piece_tensor(to, rows, cols, device_), {}};
  }

  ops::WeightPart place_stack(std::span<const ops::WeightPart> parts) {
    std::vector<Tensor> data, scales;
    for (const ops::WeightPart& part : parts) {
      data.push_back(part.data);
      if (part.scale)
        scales.push_back(parts.size() > 1 && scaled_by_rows(part) ? row_scales(part) : part.scale.values);
    }
    const ops::WeightPart& first = parts.front();
    ops::WeightPart out{stack(data, type_of(first, wide_)), first.scale};
    if (scales.empty()) return out;
    out.scale.values = stack(scales, scales.front().dtype);
    if (parts.size() > 1 && scaled_by_rows(first)) {
      out.scale.block_rows = 1;
      out.scale.first_row = 0;
    }
    return out;
  }

  // The scales of a part whose columns share them, one per row.
  Tensor row_scales(const ops::WeightPart& part) {
    const ops::BlockScales& s = part.scale;
    const int64_t rows = part.data.dim(0), bytes = dtype_bytes(s.values.dtype, 1);
    std::vector<std::byte>& memory = row_scales_.emplace_back(static_cast<size_t>(rows * bytes));
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(&memory[r * bytes], s.values.row_bytes((r + s.first_row) / s.block_rows),
                  static_cast<size_t>(bytes));
    }
    return make_tensor(memory.data(), s.values.dtype, {rows, 1});
  }

  std::byte* at_;
  const DType wide_;
  const bool pieces_;
  const Device device_;
  std::deque<std::vector<std::byte>> row_scales_;  // until the jobs are done
};

}  // namespace

std::string upload_problem(const ModelTables& tables, const Checkpoint* checkpoint) {
  std::map<std::string, Storage> experts;  // of the first expert's pieces
  for (const ParamEntry& param : tables.params) {
    if (param.kind != ParamEntry::Kind::matrix) continue;
    const bool routed = param.read_share < 1;
    for (const Piece& piece : param.pieces) {
      const Storage storage = storage_of(param, piece, checkpoint);
      if (!storage.type) continue;
      if (!is_plain(*storage.type) && !is_scaled_type(*storage.type) && !is_block_type(*storage.type)) {
        return fmt::format("{}: stored as {}, which no GPU kernel reads", param.path,
                           dtype_name(*storage.type));
      }
      if (!routed) continue;
      const auto [first, added] = experts.emplace(path_of_all_experts(param.path), storage);
      if (!added && first->second != storage) {
        return fmt::format("{}: stored as {}, unlike other experts of its layer, which no GPU kernel reads",
                           param.path, dtype_name(*storage.type));
      }
    }
  }
  return "";
}

namespace {

// What vectors and matrices take on the device; each kind lies in one run of memory.
struct Sizes {
  int64_t vectors = 0, matrices = 0;
};
Sizes sizes_of(const ModelTables& tables, DType wide, bool pieces) {
  Sizes sizes;
  for (const ParamEntry& param : tables.params) {
    if (param.kind == ParamEntry::Kind::vector) sizes.vectors += aligned(param.value.bytes());
    if (param.kind == ParamEntry::Kind::matrix) sizes.matrices += Placer::bytes_of(param, wide, pieces);
  }
  return sizes;
}

// Exact kernels read single elements. All MXFP4 of experts or none, since one kernel takes both matrices of a
// layer's.
bool wants_pieces(const ModelTables& tables, DType wide, Device device) {
  if (wide == DType::f32 || device.kind != Device::cuda || gpu::device_info(device).capability != 90)
    return false;
  std::map<std::string_view, bool> in_pieces;  // by expert
  for (const ParamEntry& param : tables.params) {
    if (param.read_share == 1) continue;
    // Before "down.weight" or "gate|up.weight".
    const std::string_view expert =
        std::string_view(param.path).substr(0, param.path.rfind('.', param.path.rfind('.') - 1));
    for (const ops::WeightPart& part : param.parts) {
      const bool fits = goes_in_pieces(part);
      if (!fits && part.data.dtype == DType::f4e2m1x2) return false;
      if (const auto [other, fresh] = in_pieces.try_emplace(expert, fits); other->second != fits)
        return false;
    }
  }
  return true;
}

// Points all parameters to their places; the placer's jobs are what must be copied there.
void place_all(ModelTables& tables, std::byte* vectors, Placer& placer, Device device) {
  for (ParamEntry& param : tables.params) {
    if (param.kind == ParamEntry::Kind::matrix) {
      placer.place(param);
      continue;
    }
    const int64_t n = param.value.elements();
    add_jobs(placer.jobs, param.value.reshaped({1, n}), DType::f32, vectors);
    param.value = make_tensor(vectors, DType::f32, {n}, device);
    vectors += aligned(param.value.bytes());
  }
}

}  // namespace

int64_t place_nowhere(ModelTables& tables, DType wide, Device device) {
  const bool pieces = wants_pieces(tables, wide, device);
  const Sizes sizes = sizes_of(tables, wide, pieces);
  auto* nowhere = reinterpret_cast<std::byte*>(kAlign);
  Placer placer(nowhere + sizes.vectors, wide, pieces, device);
  place_all(tables, nowhere, placer, device);
  return sizes.vectors + sizes.matrices;
}

Weights upload_weights(ModelTables& tables, [[maybe_unused]] Weights host, const LoadOptions& options,
                       DType wide, Device device) {
  const bool pieces = wants_pieces(tables, wide, device);
  const Sizes sizes = sizes_of(tables, wide, pieces);
  Weights weights;
  auto* vectors = static_cast<std::byte*>(weights.buffers.emplace_back(sizes.vectors, device).data());
  auto* matrices = static_cast<std::byte*>(weights.buffers.emplace_back(sizes.matrices, device).data());
  Placer placer(matrices, wide, pieces, device);
  place_all(tables, vectors, placer, device);
  for (const Job& job : placer.jobs) weights.bytes += job.bytes();
  run(placer.jobs, device, options);
  return weights;
}

}  // namespace atom
