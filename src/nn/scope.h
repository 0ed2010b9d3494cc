// Scope: a place in the checkpoint's name tree, through which layers declare what they own.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "nn/param.h"
#include "ops/op.h"

namespace atom {

// A parameter that is a matrix. A copyable handle; the tables own the entry.
class Matrix {
 public:
  Matrix() = default;
  Matrix(ParamEntry* entry, int64_t rows, int64_t cols) : entry_(entry), rows_(rows), cols_(cols) {}
  operator ops::Weight() const { return {entry_->parts, rows_, cols_}; }
  int64_t rows() const { return rows_; }  // of this rank, all pieces
  int64_t cols() const { return cols_; }
  void mark_lookup_only() { entry_->lookup_only = true; }
  void mark_routed(int64_t chosen, int64_t experts) {
    entry_->read_share = static_cast<double>(chosen) / static_cast<double>(experts);
  }

 private:
  ParamEntry* entry_ = nullptr;
  int64_t rows_ = 0, cols_ = 0;
};

// A parameter that is a vector of f32. A default-constructed one is absent and gives a null tensor.
class Vector {
 public:
  Vector() = default;
  explicit Vector(ParamEntry* entry) : entry_(entry) {}
  operator Tensor() const { return entry_ == nullptr ? Tensor{} : entry_->value; }

 private:
  ParamEntry* entry_ = nullptr;
};

class Scope {
 public:
  explicit Scope(ModelTables& tables, std::string path = "") : tables_(&tables), path_(std::move(path)) {}
  Scope operator/(std::string_view name) const { return Scope(*tables_, join(name)); }
  Scope operator/(int64_t index) const { return Scope(*tables_, join(std::to_string(index))); }
  const std::string& path() const { return path_; }
  std::string join(std::string_view name) const;

  // Declares a parameter. Source names in the pieces are complete checkpoint names (see join).
  Matrix matrix(std::string_view name, std::vector<Piece> pieces) const;
  Vector vector(std::string_view name, std::vector<Piece> pieces) const;
  // The usual vector: one tensor of `n` elements named after the parameter.
  Vector vector(std::string_view name, int64_t n) const;

  // Declares what a layer keeps per token; the handle finds it again in a step (Ctx::cache).
  int cache(const LayerCache& cache) const;
  // Declares what a layer keeps per sequence; the handle finds it again in a step (Ctx::state).
  int state(const LayerState& state) const;
  // Declares a rope recipe; equal recipes share one handle (Ctx::rope).
  int rope(const ops::RopeParameters& rope) const;
  // Declares a carry; layers that name the same one share its handle (Ctx::carry).
  int carry(const Carry& carry) const;
  void ignore(std::string pattern, std::string reason) const;
  // Says in the tables that `what` cannot run if the model's device has no implementation of `Op`.
  template <class Op>
  void needs(const char* what) const {
    if (!tables_->lacking.empty() || !ops::impls<Op>(tables_->device).empty()) return;
    tables_->lacking = path_ + ": " + what + " has no GPU implementation yet";
  }

  const Mesh& mesh() const { return tables_->mesh; }
  Communicator& axis(Axis axis) const;
  Range local(int64_t full, const Shard& shard, const std::string& name) const;
  // The layers of this pipeline stage, of `layers` in all.
  Range stage_layers(int64_t layers) const;
  ModelTables& tables() const { return *tables_; }

 private:
  ParamEntry* add(ParamEntry::Kind kind, std::string_view name, std::vector<Piece> pieces) const;

  ModelTables* tables_;
  std::string path_;
};

}  // namespace atom
