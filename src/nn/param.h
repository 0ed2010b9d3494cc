// Declaration of weights. Constructing a model fills a ModelTables; after that the tables are the manifest
// that check, plan, dummy weights and the loader read. Nothing is allocated before it is complete.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/cache_spec.h"
#include "checkpoint/name_patterns.h"
#include "comm/communicator.h"
#include "ops/rope_frequencies.h"
#include "ops/weight.h"

namespace atom {

enum class Axis : uint8_t { none, attn, mlp, expert, expert_mlp };

// How one checkpoint tensor is cut over the ranks of an axis. Declared once, beside the name, by the layer
// that owns the weight: the loader slices with it and the layer sizes itself with it.
struct Shard {
  int dim = -1;  // 0: rows, 1: columns, -1: every rank holds the whole
  Axis axis = Axis::none;
  int64_t unit = 1;     // smallest legal cut in elements, for example head_dim
  bool ragged = false;  // units need not divide evenly; ranks differ by at most one unit
  static Shard by_rows(Axis axis, int64_t unit = 1) { return {0, axis, unit, false}; }
  static Shard by_cols(Axis axis, int64_t unit = 1) { return {1, axis, unit, false}; }
};

struct Range {
  int64_t begin = 0, count = 0;
};

// The part of `full` elements that belongs to `rank`. Fewer units than ranks: neighbours share one, which is
// how key/value heads are replicated. Throws Error naming `name` if the cut is impossible.
Range local_range(int64_t full, const Shard& shard, int rank, int size, const std::string& name);

// The scales that a format stores beside a matrix: element (r, c) of the stored matrix is multiplied by
// scale (r / block_rows, c / block_cols).
struct ScaleSource {
  std::vector<std::string> any_of;         // the first tensor that exists
  int64_t block_rows = 0, block_cols = 0;  // both 0: one scale for all or one per row, as its shape says
};

// Where rows lie in the checkpoint: rows begin, begin + step, ... of tensor `name`, or of its slice `index`
// if the tensor has a leading dim (fused experts).
struct Source {
  std::string name;
  int64_t index = -1;
  int64_t begin = 0;
  int64_t step = 1;
  int64_t stored_rows = 0;  // rows of the stored matrix; 0: those of the piece
  int64_t slices = 0;       // leading dim that a tensor with `index` must have; 0: any
  bool transposed = false;  // stored as [cols, rows]; the loader turns a copy of the part
  // What the weight format adds, for matrices only.
  std::optional<ScaleSource> scale;  // used if the elements turn out to be of a type that needs it
  int64_t nibble_group = 0;  // > 0: E2M1 in bytes, [rows, cols / 2], of which so many share one of `scale`
  bool nibbles_in_groups = false;   // their shape is [rows, cols / nibble_group, nibble_group / 2]
  std::optional<DType> usual_type;  // of the elements in published checkpoints, which dummy weights take
};

// One checkpoint tensor that feeds a parameter: the first source that exists. Pieces stack on rows.
struct Piece {
  std::vector<Source> any_of;
  int64_t rows = 0;
  int64_t cols = 1;  // of a vector: elements per row, stored as [rows, 1, cols] if there are several
  Shard shard;
};

struct ParamEntry {
  enum class Kind : uint8_t {
    matrix,  // stays as stored, one part per piece
    vector,  // widened to one f32 array
  };
  std::string path;
  Kind kind = Kind::matrix;
  std::vector<Piece> pieces;
  bool lookup_only = false;  // rows are looked up, never multiplied with: an untied embedding
  double read_share = 1;     // of a token's step that reads this, on average: less for routed experts
  // Filled by the loader:
  std::vector<ops::WeightPart> parts;  // matrix
  Tensor value;                        // vector
};

// Tensors that a model deliberately leaves unread. `pattern` may hold `*`, which matches any text.
struct IgnoredTensors {
  std::string pattern;
  std::string reason;
};

// The type that a cache was asked to have.
struct CacheTypes {
  DType dtype = DType::f32;
  DType plain = DType::f32;  // f32, bf16 or f16: of what is not kept in E4M3 if that is `dtype`
};

// What one attention layer keeps per token on this rank.
struct LayerCache {
  // In a cache of E4M3.
  enum class Fp8 : uint8_t {
    layer_scales,  // keys and values: one scale for a layer's keys and one for its values
    key_scales,    // index keys: a scale each
    plain,         // latents beside index keys: stay in the plain type
    none,          // latents alone: a model that has nothing else is refused
  };
  int64_t heads = 0, key_dim = 0, value_dim = 0;
  int64_t window = 0;  // 0: every token
  Fp8 fp8 = Fp8::layer_scales;
  std::string path;  // of the layer; Scope::cache writes it

  bool has_key_scales(const CacheTypes& types) const {
    return types.dtype == DType::f8e4m3 && fp8 == Fp8::key_scales;
  }
  // Of keys and values.
  DType dtype(const CacheTypes& types) const {
    const bool plain = types.dtype == DType::f8e4m3 && (fp8 == Fp8::plain || fp8 == Fp8::none);
    return plain ? types.plain : types.dtype;
  }
  CacheSpec spec(const CacheTypes& types) const {
    const int64_t scales = has_key_scales(types) ? dtype_bytes(DType::f32, heads) : 0;
    return {window > 0 ? CacheKind::window : CacheKind::paged,
            dtype_bytes(dtype(types), heads * (key_dim + value_dim)) + scales, window};
  }
};

// What one recurrent layer keeps per sequence on this rank, in f32 elements.
struct LayerState {
  int64_t conv = 0;       // the last inputs of its causal convolution
  int64_t recurrent = 0;  // the state of its recurrence
  int64_t row = 0;        // what one row adds to both is computed from so many values
  CacheSpec spec() const { return {.kind = CacheKind::state, .state_bytes = 4 * (conv + recurrent)}; }
};

// int32 values per token that layers leave for later ones, on this stage and, where a layer there needs them,
// on the next.
struct Carry {
  std::string name;
  int64_t cols = 0;
  bool received = false, sent = false;  // from the stage before, to the stage after
  bool drafts = false;                  // left by the drafter for its own later steps
};

// The layer that drafts tokens for speculation, which checkpoints store beside the model's own.
struct DrafterTables {
  bool wanted = false;  // declare it
  // Whether the checkpoint has tensor `own` with other content than `shared`, which the drafter shares
  // otherwise. Null: never.
  std::function<bool(const std::string& own, const std::string& shared)> stores_own;
  std::string scope;  // where its tensors lie; empty: the architecture or the config has none
};

class WeightFormat;

struct ModelTables {
  Mesh mesh;
  Device device;                               // on which the model will run
  std::string lacking;                         // the first layer that cannot run there, and why; empty: none
  std::shared_ptr<const WeightFormat> format;  // null: matrices are stored as plain numbers
  std::deque<ParamEntry> params;               // a deque: layers keep pointers to entries
  std::vector<LayerCache> caches;              // one per layer of this stage that caches, in layer order
  std::vector<LayerState> states;              // one per recurrent layer of this stage, in layer order
  std::vector<ops::RopeParameters> ropes;
  std::vector<Carry> carries;
  std::vector<IgnoredTensors> ignored;
  DrafterTables drafter;
  std::vector<int> stage_partition;  // layers per pipeline stage; empty: as even as possible
  int64_t hidden = 0;                // width of the residual stream, for the hand-over between stages
  int64_t vocab = 0;
};

}  // namespace atom
