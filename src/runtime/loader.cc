#include "runtime/loader.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/run_jobs.h"
#include "runtime/account.h"
#include "tensor/small_floats.h"

namespace atom {
namespace {

constexpr int64_t kReadChunk = 16 << 20;  // bytes of one read or populate job

// This rank's part of one stored tensor.
struct LocalPart {
  const StoredTensor* stored;
  DType dtype;
  int64_t first_element;   // of the first row, in the stored tensor
  int64_t row_stride;      // elements between rows
  int64_t rows, cols;      // of this rank
  int64_t col_stride = 1;  // more than 1: stored as [cols, rows], to be turned
};

LocalPart local_part(const PieceAccount& account, const Scope& scope) {
  const Piece& piece = *account.piece;
  const Source& source = *account.source;
  const std::string& name = account.stored->name;
  const Range rows = scope.local(piece.rows, piece.shard.dim == 0 ? piece.shard : Shard{}, name);
  const Range cols = scope.local(piece.cols, piece.shard.dim == 1 ? piece.shard : Shard{}, name);
  const int64_t stored_rows = source.stored_rows > 0 ? source.stored_rows : piece.rows;
  LocalPart part{account.stored, account.dtype(), 0, piece.cols * source.step, rows.count, cols.count};
  const int64_t slice = std::max<int64_t>(source.index, 0) * stored_rows * piece.cols;
  part.first_element = slice + (source.begin + rows.begin * source.step) * piece.cols + cols.begin;
  if (source.transposed) {
    part.first_element = slice + cols.begin * stored_rows + source.begin + rows.begin * source.step;
    part.row_stride = source.step;
    part.col_stride = stored_rows;
    return part;
  }
  const int64_t block = dtype_info(part.dtype).block;
  if (cols.begin % block != 0 || cols.count % block != 0) {
    throw invalid("{}: {} stores blocks of {} columns and cannot be cut at column {}; use fewer ranks", name,
                  account.stored->dtype_name, block, cols.begin);
  }
  return part;
}

// This rank's part of the scales of a matrix, and how its elements lie in their blocks.
struct LocalScale {
  LocalPart part;
  ops::BlockScales blocks;  // without values
};

LocalScale local_scale(const PieceAccount& account, const Scope& scope) {
  const Piece& piece = *account.piece;
  const Source& source = *account.source;
  const std::string& name = account.stored->name;
  const Range rows = scope.local(piece.rows, piece.shard.dim == 0 ? piece.shard : Shard{}, name);
  const Range cols = scope.local(piece.cols, piece.shard.dim == 1 ? piece.shard : Shard{}, name);
  const int64_t stored_rows = source.stored_rows > 0 ? source.stored_rows : piece.rows;
  const int64_t block_rows = account.block_rows, block_cols = account.block_cols;
  const int64_t down = (stored_rows + block_rows - 1) / block_rows;
  const int64_t across = (piece.cols + block_cols - 1) / block_cols;
  // In stored rows and columns; with a step, every row is a block of its own.
  const int64_t first = source.begin + rows.begin * source.step;
  const int64_t last = first + (rows.count - 1) * source.step;
  const int64_t first_block = first / block_rows, first_across = cols.begin / block_cols;
  LocalScale local;
  local.blocks = {{}, block_rows, block_cols, first % block_rows, cols.begin % block_cols};
  local.part = {account.scale,
                *account.scale->dtype == DType::u8 ? DType::e8m0 : *account.scale->dtype,
                (std::max<int64_t>(source.index, 0) * down + first_block) * across + first_across,
                across * source.step,
                source.step > 1 ? rows.count : last / block_rows - first_block + 1,
                (cols.begin + cols.count - 1) / block_cols - first_across + 1};
  return local;
}

// A run of bytes of one file: to be populated in the map, or read to `destination`.
struct ByteJob {
  const StoredTensor* stored;
  int64_t offset;  // in the tensor
  int64_t bytes;
  std::byte* destination;
};

void sort_by_place(std::vector<ByteJob>& jobs) {
  std::sort(jobs.begin(), jobs.end(), [](const ByteJob& a, const ByteJob& b) {
    if (a.stored->file != b.stored->file) return a.stored->file < b.stored->file;
    return a.stored->offset + a.offset < b.stored->offset + b.offset;
  });
}

void split(std::vector<ByteJob>& jobs, const StoredTensor* stored, int64_t offset, int64_t bytes,
           std::byte* to) {
  for (int64_t at = 0; at < bytes; at += kReadChunk) {
    jobs.push_back(
        {stored, offset + at, std::min(kReadChunk, bytes - at), to == nullptr ? nullptr : to + at});
  }
}

// Brings mapped pages in ahead of their first use, in file order on many threads.
void populate(const std::byte* data, int64_t bytes) {
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes);
#ifdef MADV_POPULATE_READ
  if (::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ) == 0) return;
#endif
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

int64_t physical_bytes() { return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE); }

Tensor part_view(const LocalPart& part, const std::byte* tensor_data) {
  std::byte* data = const_cast<std::byte*>(tensor_data) + dtype_bytes(part.dtype, part.first_element);
  Tensor t = make_tensor(data, part.dtype, {part.rows, part.cols});
  t.strides[0] = part.row_stride;
  return t;
}

// Copies rows of a cut or strided part into dense memory.
void copy_part(const LocalPart& part, const Checkpoint& checkpoint, std::byte* to) {
  const int64_t row_bytes = dtype_bytes(part.dtype, part.cols);
  for (int64_t r = 0; r < part.rows; ++r) {
    const int64_t from = dtype_bytes(part.dtype, part.first_element + r * part.row_stride);
    checkpoint.read(*part.stored, from, {to + r * row_bytes, static_cast<size_t>(row_bytes)});
  }
}

// Turns a part that is stored as [cols, rows] into dense rows: runs of stored rows are read and dealt out.
void turn_part(const LocalPart& part, const Checkpoint& checkpoint, std::byte* to) {
  constexpr int64_t kRun = 64;
  const int64_t size = dtype_bytes(part.dtype, 1);
  const int64_t span = (part.rows - 1) * part.row_stride + 1;
  std::vector<std::byte> run(static_cast<size_t>(kRun * span * size));
  for (int64_t c0 = 0; c0 < part.cols; c0 += kRun) {
    const int64_t cols = std::min(kRun, part.cols - c0);
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t from = (part.first_element + (c0 + c) * part.col_stride) * size;
      checkpoint.read(*part.stored, from, {run.data() + c * span * size, static_cast<size_t>(span * size)});
    }
    for (int64_t r = 0; r < part.rows; ++r) {
      std::byte* row = to + (r * part.cols + c0) * size;
      for (int64_t c = 0; c < cols; ++c) {
        std::memcpy(row + c * size, run.data() + (c * span + r * part.row_stride) * size,
                    static_cast<size_t>(size));
      }
    }
  }
}

void widen(const std::byte* from, DType dtype, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    switch (dtype) {
      case DType::f32:
        std::memcpy(&to[i], from + 4 * i, 4);
        break;
      case DType::bf16:
        std::memcpy(&half, from + 2 * i, 2);
        to[i] = bf16_to_f32(half);
        break;
      case DType::f16:
        std::memcpy(&half, from + 2 * i, 2);
        to[i] = f16_to_f32(half);
        break;
      case DType::e8m0:
        to[i] = e8m0_to_f32(static_cast<uint8_t>(from[i]));
        break;
      default:
        CHECK(false, "{}", dtype_name(dtype));
    }
  }
}

// Reads a part as f32, rows one after the other.
void read_widened(const LocalPart& part, const Checkpoint& checkpoint, float* to) {
  const int64_t span = (part.rows - 1) * part.row_stride + part.cols;
  std::vector<std::byte> raw(static_cast<size_t>(dtype_bytes(part.dtype, span)));
  checkpoint.read(*part.stored, dtype_bytes(part.dtype, part.first_element), raw);
  for (int64_t r = 0; r < part.rows; ++r, to += part.cols) {
    widen(raw.data() + dtype_bytes(part.dtype, r * part.row_stride), part.dtype, to, part.cols);
  }
}

// True if kernels read the scales of this type as they are stored.
bool keeps_scales(DType dtype) { return dtype == DType::f4e2m1x2; }

// One f32 buffer for all vectors; gives every vector its place in it.
Buffer place_vectors(ModelTables& tables) {
  const Scope scope(tables);
  std::vector<std::pair<ParamEntry*, int64_t>> sizes;
  int64_t total = 0;
  for (ParamEntry& param : tables.params) {
    if (param.kind != ParamEntry::Kind::vector) continue;
    int64_t n = 0;
    for (const Piece& piece : param.pieces) {
      n += scope.local(piece.rows, piece.shard, param.path).count * piece.cols;
    }
    sizes.emplace_back(&param, n);
    total += (n + 15) / 16 * 16;
  }
  Buffer buffer(total * static_cast<int64_t>(sizeof(float)));
  float* at = static_cast<float*>(buffer.data());
  for (const auto& [param, n] : sizes) {
    param->value = make_tensor(at, DType::f32, {n});
    at += (n + 15) / 16 * 16;
  }
  return buffer;
}

}  // namespace

Weights load_weights(ModelTables& tables, const Checkpoint& checkpoint, const LoadOptions& options) {
  const Scope scope(tables);
  // The whole plan first.
  struct PlannedPart {
    LocalPart part;
    std::optional<LocalScale> scale;
  };
  std::vector<std::pair<ParamEntry*, std::vector<PlannedPart>>> plan;
  int64_t wide_scales = 0;  // f32 scales of all parts: few beside their matrices, so they are widened
  for (ParamEntry& param : tables.params) {
    auto& parts = plan.emplace_back(&param, std::vector<PlannedPart>{}).second;
    for (const Piece& piece : param.pieces) {
      const PieceAccount account = resolve(param, piece, checkpoint);
      if (!account.problem.empty()) throw invalid("{}", account.problem);
      PlannedPart& planned = parts.emplace_back(PlannedPart{local_part(account, scope), {}});
      if (account.scale == nullptr) continue;
      planned.scale = local_scale(account, scope);
      if (keeps_scales(planned.part.dtype)) continue;
      wide_scales += planned.scale->part.rows * planned.scale->part.cols;
    }
  }

  Weights weights;
  weights.buffers.push_back(place_vectors(tables));
  std::vector<ByteJob> jobs;
  std::vector<std::pair<LocalPart, std::byte*>> strided, turned;
  std::vector<std::pair<LocalPart, float*>> widened;
  float* wide = static_cast<float*>(weights.buffers.emplace_back(wide_scales * 4).data());

  Slabs copies(weights.buffers);

  // The tensor of a part as it is stored: in place, or where a job will copy it.
  const auto place = [&](const LocalPart& part) {
    const int64_t bytes = dtype_bytes(part.dtype, part.rows * part.cols);
    weights.bytes += bytes;
    const bool computed = checkpoint.is_computed(*part.stored);  // in memory already
    if ((options.mmap || computed) && part.col_stride == 1) {
      const int64_t first = dtype_bytes(part.dtype, part.first_element);
      const int64_t span = dtype_bytes(part.dtype, (part.rows - 1) * part.row_stride + part.cols);
      if (!computed) split(jobs, part.stored, first, span, nullptr);
      return part_view(part, checkpoint.mapped(*part.stored));
    }
    std::byte* to = copies.take(bytes);
    if (part.col_stride > 1) {  // no kernel reads columns: a copy, also of a mapped file
      turned.emplace_back(part, to);
    } else if (part.row_stride == part.cols) {
      split(jobs, part.stored, dtype_bytes(part.dtype, part.first_element), bytes, to);
    } else {
      strided.emplace_back(part, to);
    }
    return make_tensor(to, part.dtype, {part.rows, part.cols});
  };
  for (auto& [param, parts] : plan) {
    if (param->kind == ParamEntry::Kind::vector) {
      float* to = param->value.as<float>();
      for (const PlannedPart& planned : parts) {
        read_widened(planned.part, checkpoint, to);
        to += planned.part.rows * planned.part.cols;
        weights.bytes += dtype_bytes(planned.part.dtype, planned.part.rows * planned.part.cols);
      }
      continue;
    }
    param->parts.clear();
    for (const PlannedPart& planned : parts) {
      ops::WeightPart& part = param->parts.emplace_back(ops::WeightPart{place(planned.part), {}});
      if (!planned.scale) continue;
      const LocalPart& scale = planned.scale->part;
      part.scale = planned.scale->blocks;
      if (keeps_scales(planned.part.dtype)) {
        part.scale.values = place(scale);
        continue;
      }
      part.scale.values = make_tensor(wide, DType::f32, {scale.rows, scale.cols});
      widened.emplace_back(scale, wide);
      wide += scale.rows * scale.cols;
      weights.bytes += part.scale.values.bytes();
    }
  }

  if (!options.values) return weights;
  sort_by_place(jobs);
  int64_t total = 0;
  for (const ByteJob& job : jobs) total += job.bytes;
  for (const auto* list : {&strided, &turned}) {
    for (const auto& [part, to] : *list) total += dtype_bytes(part.dtype, part.rows * part.cols);
  }
  JobProgress progress(options.progress, total);
  run_jobs(widened, options.threads,
           [&](const std::pair<LocalPart, float*>& job) { read_widened(job.first, checkpoint, job.second); });
  run_jobs(turned, options.threads, [&](const std::pair<LocalPart, std::byte*>& job) {
    turn_part(job.first, checkpoint, job.second);
    progress.add(dtype_bytes(job.first.dtype, job.first.rows * job.first.cols));
  });
  if (options.mmap) {
    if (!options.populate || total > physical_bytes())
      return weights;  // populating more would evict its own pages
    run_jobs(jobs, options.threads, [&](const ByteJob& job) {
      populate(checkpoint.mapped(*job.stored) + job.offset, job.bytes);
      progress.add(job.bytes);
    });
    return weights;
  }
  run_jobs(jobs, options.threads, [&](const ByteJob& job) {
    checkpoint.read(*job.stored, job.offset, {job.destination, static_cast<size_t>(job.bytes)});
    progress.add(job.bytes);
  });
  run_jobs(strided, options.threads, [&](const std::pair<LocalPart, std::byte*>& job) {
    copy_part(job.first, checkpoint, job.second);
    progress.add(dtype_bytes(job.first.dtype, job.first.rows * job.first.cols));
  });
  return weights;
}

namespace {

// The type that the model's format usually stores a matrix in, or `plain` where it leaves matrices alone.
DType dummy_dtype(const Piece& piece, int64_t cols, DType plain) {
  for (const Source& source : piece.any_of) {
    if (!source.usual_type) continue;
    return cols % dtype_info(*source.usual_type).block == 0 ? *source.usual_type : plain;
  }
  return plain;
}

// Equal scales that bring random elements of a quantised type into [-range, range].
ops::BlockScales dummy_scales(const Piece& piece, DType dtype, int64_t rows, int64_t cols, float range,
                              Slabs& slabs) {
  const Source& source = *std::find_if(piece.any_of.begin(), piece.any_of.end(),
                                       [](const Source& s) { return s.usual_type.has_value(); });
  const int64_t block_rows = source.scale->block_rows > 0 ? source.scale->block_rows : rows;
  const int64_t block_cols = source.scale->block_cols > 0 ? source.scale->block_cols : cols;
  const int64_t down = (rows + block_rows - 1) / block_rows, across = (cols + block_cols - 1) / block_cols;
  const bool bytes = dtype == DType::f4e2m1x2;
  std::byte* data = slabs.take(down * across * (bytes ? 1 : 4));
  if (bytes) {
    constexpr float kLargest = 6;
    std::memset(data, 127 + static_cast<int>(std::lround(std::log2(range / kLargest))),
                static_cast<size_t>(down * across));
  } else {
    std::fill_n(reinterpret_cast<float*>(data), down * across, range / kF8e4m3Max);
  }
  return {make_tensor(data, bytes ? DType::e8m0 : DType::f32, {down, across}), block_rows, block_cols};
}

}  // namespace

Weights dummy_weights(ModelTables& tables, DType dtype, const LoadOptions& options) {
  CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "{}", dtype_name(dtype));
  const Scope scope(tables);
  Weights weights;
  weights.buffers.push_back(place_vectors(tables));
  struct Fill {
    Tensor tensor;
    uint64_t seed;
    float scale;
  };
  std::vector<Fill> fills;
  Slabs slabs(weights.buffers);
  for (ParamEntry& param : tables.params) {
    if (param.kind == ParamEntry::Kind::vector) {
      const bool norm = param.path.find("norm") != std::string::npos;
      std::fill_n(param.value.as<float>(), param.value.elements(), norm ? 1.0f : 0.0f);
      weights.bytes += param.value.bytes();
      continue;
    }
    param.parts.clear();
    for (const Piece& piece : param.pieces) {
      const std::string& name = piece.any_of.front().name;
      const int64_t rows = scope.local(piece.rows, piece.shard.dim == 0 ? piece.shard : Shard{}, name).count;
      const int64_t cols = scope.local(piece.cols, piece.shard.dim == 1 ? piece.shard : Shard{}, name).count;
      const float scale = std::sqrt(3.0f / static_cast<float>(piece.cols));
      const DType stored = dummy_dtype(piece, cols, dtype);
      Tensor tensor = make_tensor(slabs.take(dtype_bytes(stored, rows * cols)), stored, {rows, cols});
      ops::WeightPart& part = param.parts.emplace_back(ops::WeightPart{tensor, {}});
      if (is_scaled_type(stored)) part.scale = dummy_scales(piece, stored, rows, cols, scale, slabs);
      weights.bytes += part.bytes();
      const int64_t rows_per_job = std::max<int64_t>(1, (1 << 20) / cols);
      for (int64_t r = 0; r < rows; r += rows_per_job) {
        fills.push_back({tensor.rows(r, std::min(rows_per_job, rows - r)), fills.size() + 1, scale});
      }
    }
  }
  if (!options.values) return weights;
  run_jobs(fills, options.threads, [](const Fill& fill) {
    uint64_t state = fill.seed * 0x9E3779B97F4A7C15ull;
    for (int64_t i = 0, n = fill.tensor.elements(); i < n; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      const float value = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f * fill.scale;
      switch (fill.tensor.dtype) {
        case DType::f32:
          fill.tensor.as<float>()[i] = value;
          break;
        case DType::bf16:
          fill.tensor.as<uint16_t>()[i] = f32_to_bf16(value);
          break;
        case DType::f8e4m3:  // of the scale, which is that of the part's range
          fill.tensor.as<uint8_t>()[i] = f32_to_f8e4m3(value / fill.scale * kF8e4m3Max);
          break;
        case DType::f4e2m1x2:
          if (i % 2 == 0) fill.tensor.as<uint8_t>()[i / 2] = static_cast<uint8_t>(state >> 32);
          break;
        default:
          fill.tensor.as<uint16_t>()[i] = f32_to_f16(value);
          break;
      }
    }
  });
  return weights;
}

}  // namespace atom
