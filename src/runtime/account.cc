#include "runtime/account.h"

#include <fmt/ranges.h>

#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/text_util.h"

namespace atom {
namespace {

constexpr size_t kMaxListed = 20;  // problems in one error message

int64_t stored_rows(const Piece& piece, const Source& source) {
  return source.stored_rows > 0 ? source.stored_rows : piece.rows;
}

std::vector<int64_t> expected_shape(const ParamEntry& param, const Piece& piece, const Source& source,
                                    const StoredTensor& stored) {
  std::vector<int64_t> shape;
  if (source.index >= 0) {
    const int64_t any = stored.shape.empty() ? 0 : stored.shape.front();
    shape.push_back(source.slices > 0 ? source.slices : any);
  }
  const size_t matrix = shape.size();
  shape.push_back(stored_rows(piece, source));
  if (source.nibble_group > 0) {
    if (source.nibbles_in_groups) shape.push_back(piece.cols / source.nibble_group);
    shape.push_back((source.nibbles_in_groups ? source.nibble_group : piece.cols) / 2);
    return shape;
  }
  if (param.kind == ParamEntry::Kind::vector && piece.cols > 1) shape.push_back(1);  // a filter per channel
  if (param.kind == ParamEntry::Kind::matrix || piece.cols > 1) shape.push_back(piece.cols);
  if (source.transposed) std::swap(shape[matrix], shape[matrix + 1]);
  return shape;
}

bool is_weight_type(ParamEntry::Kind kind, const Source& source, DType dtype) {
  if (source.nibble_group > 0) return dtype == DType::u8;
  switch (dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return true;
    case DType::f8e4m3:
      return source.scale.has_value();
    default:
      return kind == ParamEntry::Kind::matrix && is_block_type(dtype);
  }
}

// Ones are left out of shapes freely: a scale per tensor is [], [1] or [1, 1].
std::vector<int64_t> without_ones(const std::vector<int64_t>& shape) {
  std::vector<int64_t> rest;
  for (const int64_t n : shape) {
    if (n != 1) rest.push_back(n);
  }
  return rest;
}

bool is_scale_type(const Source& source, const std::optional<DType>& dtype) {
  if (!dtype) return false;
  if (source.nibble_group > 0) return *dtype == DType::u8 || *dtype == DType::e8m0;
  return *dtype == DType::f32 || *dtype == DType::bf16 || *dtype == DType::f16 || *dtype == DType::e8m0;
}

// Finds the scales that `result.stored` needs.
void resolve_scale(PieceAccount& result, const Checkpoint& checkpoint) {
  const Piece& piece = *result.piece;
  const Source& source = *result.source;
  const ScaleSource& scale = *source.scale;
  for (const std::string& name : scale.any_of) {
    if (result.scale == nullptr) result.scale = checkpoint.find(name);
  }
  if (result.scale == nullptr) {
    result.problem = fmt::format("{}: missing; {} is {} and means nothing without its scales",
                                 scale.any_of.front(), result.stored->name, to_string(*result.stored));
    return;
  }
  const StoredTensor& stored = *result.scale;
  const int64_t rows = stored_rows(piece, source), cols = piece.cols;
  // The grids that the config allows: one of blocks, or one cell per row or for all.
  std::vector<std::pair<int64_t, int64_t>> blocks = {{scale.block_rows, scale.block_cols}};
  if (scale.block_rows == 0) blocks = {{rows, cols}, {1, cols}};
  std::vector<int64_t> shape;
  for (const auto& [block_rows, block_cols] : blocks) {
    shape = {(rows + block_rows - 1) / block_rows, (cols + block_cols - 1) / block_cols};
    if (source.index >= 0) shape.insert(shape.begin(), result.stored->shape.front());
    if (without_ones(stored.shape) != without_ones(shape)) continue;
    result.block_rows = block_rows;
    result.block_cols = block_cols;
    break;
  }
  if (result.block_rows == 0) {
    result.problem = fmt::format("{}: is {}, {} asks for [{}]", stored.name, to_string(stored),
                                 result.stored->name, fmt::join(shape, ", "));
  } else if (!is_scale_type(source, stored.dtype)) {
    result.problem = fmt::format("{}: stored as {}, which scales of {} cannot be", stored.name,
                                 stored.dtype_name, result.stored->name);
  } else if (source.step > 1 && result.block_rows > 1) {
    result.problem = fmt::format("{}: rows that alternate cannot share the scales in blocks of {} rows of {}",
                                 result.stored->name, result.block_rows, stored.name);
  }
}

}  // namespace

DType PieceAccount::dtype() const { return source->nibble_group > 0 ? DType::f4e2m1x2 : *stored->dtype; }

PieceAccount resolve(const ParamEntry& param, const Piece& piece, const Checkpoint& checkpoint) {
  PieceAccount result{.param = &param, .piece = &piece};
  // The first source that exists; of several with its name, the one that can be stored in its type.
  for (const Source& source : piece.any_of) {
    const StoredTensor* stored = checkpoint.find(source.name);
    if (stored == nullptr) continue;
    const bool fits = stored->dtype && is_weight_type(param.kind, source, *stored->dtype);
    if (result.stored != nullptr && (result.stored != stored || !fits)) continue;
    result.stored = stored;
    result.source = &source;
    if (fits) break;
  }
  if (result.stored == nullptr) {
    result.problem = fmt::format("{}: missing", piece.any_of.front().name);
    return result;
  }
  const StoredTensor& stored = *result.stored;
  const std::vector<int64_t> shape = expected_shape(param, piece, *result.source, stored);
  if (!stored.dtype || !is_weight_type(param.kind, *result.source, *stored.dtype)) {
    const bool unsaid = (stored.dtype == DType::f8e4m3 || stored.dtype == DType::u8) &&
                        param.kind == ParamEntry::Kind::matrix;
    result.problem = fmt::format("{}: stored as {}, {}", stored.name, stored.dtype_name,
                                 unsaid ? "which quantization_config excludes or does not mention"
                                        : "which this parameter cannot use");
  } else if (stored.shape != shape ||
             (result.source->index >= 0 && result.source->index >= stored.shape.front())) {
    result.problem = fmt::format("{}: is {}, the config asks for [{}]", stored.name, to_string(stored),
                                 fmt::join(shape, ", "));
  } else if (result.source->transposed && (is_block_type(result.dtype()) || is_scaled_type(result.dtype()))) {
    result.problem = fmt::format("{}: stored as [in, out] in blocks of {}, which cannot be turned",
                                 stored.name, stored.dtype_name);
  } else if (result.source->nibble_group > 0 && piece.cols % result.source->nibble_group != 0) {
    result.problem = fmt::format("{}: {} columns are not whole groups of {}", stored.name, piece.cols,
                                 result.source->nibble_group);
  } else if (is_scaled_type(result.dtype())) {
    resolve_scale(result, checkpoint);
  }
  return result;
}

Account account(const ModelTables& tables, const Checkpoint& checkpoint) {
  Account result;
  std::unordered_map<const StoredTensor*, const ParamEntry*> users;
  for (const ParamEntry& param : tables.params) {
    for (const Piece& piece : param.pieces) {
      result.pieces.push_back(resolve(param, piece, checkpoint));
      const PieceAccount& found = result.pieces.back();
      for (const StoredTensor* stored : {found.stored, found.scale}) {
        if (stored != nullptr) users.emplace(stored, &param);
      }
    }
  }
  std::vector<std::string> unclaimed;
  for (const StoredTensor& stored : checkpoint.tensors()) {
    StoredAccount& entry = result.stored.emplace_back();
    entry.stored = &stored;
    if (const auto user = users.find(&stored); user != users.end()) {
      entry.used_by = user->second->path;
      continue;
    }
    for (const IgnoredTensors& rule : tables.ignored) {
      if (matches_pattern(rule.pattern, stored.name)) entry.ignored = rule.reason;
    }
    if (entry.ignored.empty()) unclaimed.push_back(stored.name);
  }
  // A missing tensor is often an unclaimed one under another name.
  for (PieceAccount& piece : result.pieces) {
    if (piece.stored == nullptr) {
      piece.problem += did_you_mean(piece.piece->any_of.front().name, unclaimed);
    } else if (const auto& scale = piece.source->scale;
               scale && piece.problem.starts_with(scale->any_of.front() + ": missing")) {
      piece.problem += did_you_mean(scale->any_of.front(), unclaimed);
    }
  }
  return result;
}

std::vector<std::string> Account::problems() const {
  std::vector<std::string> lines;
  for (const PieceAccount& piece : pieces) {
    // Pieces of one tensor follow each other.
    if (!piece.problem.empty() && (lines.empty() || lines.back() != piece.problem))
      lines.push_back(piece.problem);
  }
  for (const StoredAccount& entry : stored) {
    if (entry.used_by.empty() && entry.ignored.empty()) {
      lines.push_back(fmt::format("{}: {} is in the checkpoint, but the model has no use for it",
                                  entry.stored->name, to_string(*entry.stored)));
    }
  }
  return lines;
}

void require_complete(const Account& account, const std::string& checkpoint_name) {
  std::vector<std::string> lines = account.problems();
  if (lines.empty()) return;
  const size_t count = lines.size();
  if (count == 1) throw invalid("{}: {}", checkpoint_name, lines.front());
  if (count > kMaxListed) {
    lines.resize(kMaxListed);
    lines.push_back(fmt::format("... and {} more (atom check lists all)", count - kMaxListed));
  }
  throw invalid("{}: {} tensors do not fit the model:\n  {}", checkpoint_name, count,
                fmt::join(lines, "\n  "));
}

}  // namespace atom
