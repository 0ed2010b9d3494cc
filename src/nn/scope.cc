#include "nn/scope.h"

#include <numeric>

#include "base/error.h"
#include "nn/weight_format.h"

namespace atom {

std::string Scope::join(std::string_view name) const {
  if (path_.empty()) return std::string(name);
  if (name.empty()) return path_;
  return path_ + "." + std::string(name);
}

ParamEntry* Scope::add(ParamEntry::Kind kind, std::string_view name, std::vector<Piece> pieces) const {
  CHECK(!pieces.empty());
  for (const Piece& piece : pieces) {
    CHECK(!piece.any_of.empty() && piece.rows > 0 && piece.cols > 0, "{}", join(name));
  }
  ParamEntry& entry = tables_->params.emplace_back();
  entry.path = join(name);
  entry.kind = kind;
  entry.pieces = std::move(pieces);
  return &entry;
}

Matrix Scope::matrix(std::string_view name, std::vector<Piece> pieces) const {
  int64_t rows = 0, cols = 0;
  for (const Piece& piece : pieces) {
    const std::string& tensor = piece.any_of.front().name;
    rows += piece.shard.dim == 0 ? local(piece.rows, piece.shard, tensor).count : piece.rows;
    cols = piece.shard.dim == 1 ? local(piece.cols, piece.shard, tensor).count : piece.cols;
  }
  if (tables_->format != nullptr) {
    for (Piece& piece : pieces) tables_->format->apply(piece);
  }
  return Matrix(add(ParamEntry::Kind::matrix, name, std::move(pieces)), rows, cols);
}

Vector Scope::vector(std::string_view name, std::vector<Piece> pieces) const {
  return Vector(add(ParamEntry::Kind::vector, name, std::move(pieces)));
}

Vector Scope::vector(std::string_view name, int64_t n) const {
  return vector(name, {Piece{{{join(name)}}, n, 1, {}}});
}

int Scope::cache(const LayerCache& cache) const {
  tables_->caches.push_back(cache);
  tables_->caches.back().path = path_;
  return static_cast<int>(tables_->caches.size()) - 1;
}

int Scope::state(const LayerState& state) const {
  tables_->states.push_back(state);
  return static_cast<int>(tables_->states.size()) - 1;
}

int Scope::rope(const ops::RopeParameters& rope) const {
  auto& ropes = tables_->ropes;
  for (size_t i = 0; i < ropes.size(); ++i) {
    if (ropes[i] == rope) return static_cast<int>(i);
  }
  ropes.push_back(rope);
  return static_cast<int>(ropes.size()) - 1;
}

int Scope::carry(const Carry& carry) const {
  auto& carries = tables_->carries;
  for (size_t i = 0; i < carries.size(); ++i) {
    if (carries[i].name != carry.name) continue;
    CHECK(carries[i].cols == carry.cols, "{}: {} and {} columns", carry.name, carries[i].cols, carry.cols);
    carries[i].received |= carry.received;
    carries[i].sent |= carry.sent;
    return static_cast<int>(i);
  }
  carries.push_back(carry);
  return static_cast<int>(carries.size()) - 1;
}

void Scope::ignore(std::string pattern, std::string reason) const {
  tables_->ignored.push_back({std::move(pattern), std::move(reason)});
}

Communicator& Scope::axis(Axis axis) const {
  switch (axis) {
    case Axis::attn:
      return *mesh().attn;
    case Axis::mlp:
      return *mesh().mlp;
    case Axis::expert:
      return *mesh().expert;
    case Axis::expert_mlp:
      return *mesh().expert_mlp;
    case Axis::none:
      break;
  }
  return solo_communicator();
}

Range Scope::local(int64_t full, const Shard& shard, const std::string& name) const {
  const Communicator& comm = axis(shard.axis);
  return local_range(full, shard, comm.rank(), comm.size(), name);
}

Range Scope::stage_layers(int64_t layers) const {
  const Mesh& m = mesh();
  const std::vector<int>& partition = tables_->stage_partition;
  if (!partition.empty()) {
    const int64_t total = std::accumulate(partition.begin(), partition.end(), int64_t{0});
    if (static_cast<int>(partition.size()) != m.stages || total != layers) {
      throw invalid(
          "the pipeline partition has {} stages and {} layers; the model needs {} stages and {} layers",
          partition.size(), total, m.stages, layers);
    }
    return {std::accumulate(partition.begin(), partition.begin() + m.stage, int64_t{0}), partition[m.stage]};
  }
  if (m.stages > layers)
    throw invalid("{} pipeline stages for {} layers: use at most {}", m.stages, layers, layers);
  const int64_t begin = layers * m.stage / m.stages;
  return {begin, layers * (m.stage + 1) / m.stages - begin};
}

}  // namespace atom
