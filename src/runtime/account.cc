#include "runtime/account.h"

#include <fmt/ranges.h>

#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/text_util.h"

namespace atom {
namespace {

constexpr size_t kMaxListed = 20;  // problems in one error message

std::vector<int64_t> expected_shape(const ParamEntry& param, const Piece& piece, const Source& source,
                                    const StoredTensor& stored) {
  std::vector<int64_t> shape;
  if (source.index >= 0) {
    const int64_t any = stored.shape.empty() ? 0 : stored.shape.front();
    shape.push_back(source.slices > 0 ? source.slices : any);
  }
  const size_t matrix = shape.size();
  shape.push_back(source.stored_rows > 0 ? source.stored_rows : piece.rows);
  if (param.kind == ParamEntry::Kind::vector && piece.cols > 1) shape.push_back(1);  // a filter per channel
  if (param.kind == ParamEntry::Kind::matrix || piece.cols > 1) shape.push_back(piece.cols);
  if (source.transposed) std::swap(shape[matrix], shape[matrix + 1]);
  return shape;
}

bool is_weight_type(ParamEntry::Kind kind, DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return true;
    default:
      return kind == ParamEntry::Kind::matrix && is_block_type(dtype);
  }
}

}  // namespace

PieceAccount resolve(const ParamEntry& param, const Piece& piece, const Checkpoint& checkpoint) {
  PieceAccount result{.param = &param, .piece = &piece};
  for (const Source& source : piece.any_of) {
    result.stored = checkpoint.find(source.name);
    if (result.stored == nullptr) continue;
    result.source = &source;
    break;
  }
  if (result.stored == nullptr) {
    result.problem = fmt::format("{}: missing", piece.any_of.front().name);
    return result;
  }
  const StoredTensor& stored = *result.stored;
  const std::vector<int64_t> shape = expected_shape(param, piece, *result.source, stored);
  if (stored.shape != shape || (result.source->index >= 0 && result.source->index >= stored.shape.front())) {
    result.problem = fmt::format("{}: is {}, the config asks for [{}]", stored.name, to_string(stored),
                                 fmt::join(shape, ", "));
  } else if (!stored.dtype || !is_weight_type(param.kind, *stored.dtype)) {
    result.problem =
        fmt::format("{}: stored as {}, which this parameter cannot use", stored.name, stored.dtype_name);
  } else if (result.source->transposed && dtype_info(*stored.dtype).block > 1) {
    result.problem = fmt::format("{}: stored as [in, out] in blocks of {}, which cannot be turned",
                                 stored.name, stored.dtype_name);
  }
  return result;
}

Account account(const ModelTables& tables, const Checkpoint& checkpoint) {
  Account result;
  std::unordered_map<const StoredTensor*, const ParamEntry*> users;
  for (const ParamEntry& param : tables.params) {
    for (const Piece& piece : param.pieces) {
      result.pieces.push_back(resolve(param, piece, checkpoint));
      if (const StoredTensor* stored = result.pieces.back().stored) users.emplace(stored, &param);
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
    if (piece.stored == nullptr) piece.problem += did_you_mean(piece.piece->any_of.front().name, unclaimed);
  }
  return result;
}

std::vector<std::string> Account::problems() const {
  std::vector<std::string> lines;
  for (const PieceAccount& piece : pieces) {
    if (!piece.problem.empty()) lines.push_back(piece.problem);
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
