// Products with stored weights for many rows of x, grouped by expert, on Hopper: what the kernels of
// grouped_kernel.h are given, and how activations lie for them.
#pragma once
#include "ops/cuda/tensor_map.h"
#include "ops/gpu/group_uses.h"
#include "tensor/mxfp4_pieces.h"

namespace atom::ops::gpu_kernels {

// How 16-bit activations lie for weights of a type: in groups of 8 `spread` columns, in which neighbours of
// one thread's fragment come together; column c of a group lies at c / spread + 8 (c % spread).
// `spread` is a power of two, given as its logarithm.
inline int spread_of(DType type) { return type == DType::f8e4m3 ? 1 : type == DType::mxfp4_8x64 ? 2 : 0; }
__host__ __device__ inline int spread_place(int col, int spread) {
  const int inside = col & (8 << spread) - 1;
  return col - inside + (inside >> spread) + (inside & (1 << spread) - 1) * 8;
}

// 16-bit numbers that activations are rounded to.
enum class Half : uint8_t {
  bf16,
  f16,  // of x divided by a power of two per row; for MXFP4 of few rows, which it makes cheap to widen
};

struct GroupedProduct {
  CUtensorMap w_map, up_map, x_map;
  CUtensorMap scale_map, up_scale_map;  // of pieces
  DType type = DType::bf16;             // of the matrices
  Half half = Half::bf16;               // of x
  ExpertMatrix w, up;                   // gated products have `up`: act(w x + bias) * (up x + up_bias)
  ExpertBias bias, up_bias;
  int rows = 0, cols = 0;  // of w
  bool gated = false;

  // Rows of x: uses in the order of their experts, cut into `made` tiles; or x_rows rows of one matrix.
  const UseTile* tiles = nullptr;
  const int32_t* made = nullptr;
  const int32_t* order = nullptr;
  int x_rows = 0;
  const float2* slots = nullptr;  // of each row of x: what it was divided by, and the weight of its use
  bool x_divided = false;
  // Instead of tiles and slots, for one row of x: all its uses, whose products follow each other in x (the
  // row itself, f32, if gated).
  bool one_row = false;
  Routing routing = {};
  // Tiles or routing are there before the kernel in front has let this one start.
  bool known_early = false;
  Experts experts = {.count = 1};  // activation

  // f32, a row per row of x or use; or 16 bits at spread_place, a row per row of x, multiplied by the weight
  // of the use.
  void* out = nullptr;
  int64_t out_stride = 0;  // elements
  bool to_inner = false;
  Half inner_half = Half::bf16;
  int inner_spread = 0;

  // Set by start_grouped.
  int row_tiles = 0, k_stages = 0, block_shift = 31;
  PieceRuns runs = {};
  float* partials = nullptr;  // sums of tiles that several blocks share the columns of
  int32_t* counters = nullptr;
};

// Why a matrix cannot be multiplied with; null: it can.
const char* refuse_grouped_matrix(const Stream& stream, const WeightPart& part);
// Bytes of scratch that `partials` takes for tiles of `tile` rows of x.
int64_t partials_bytes(const Stream& stream, int tile);
// The tile for about `rows` rows of x of one matrix: 8, 16, 32, 64 or 128.
int tile_of_rows(int64_t rows);
// Whether products with MXFP4 in pieces of tiles of at most `tile` rows of x have a kernel, which takes f16.
inline constexpr int kMostUsesOfRow = 32;
bool piece_product_fits(int cols, int tile);

// out[slot] = x[row] for the slots of a row's uses, or out[row] = x[row] without `slot_of`, rounded and
// placed for a type; dense rows. slots[slot] = what Half::f16 divided it by or 1, and the weight of its use
// or 1.
struct PlaceRows {
  void* out;
  float2* slots;
  const float* x;
  int64_t x_stride;
  int cols, rows;
  const int32_t* slot_of = nullptr;  // of each use; -1: none here
  Routing routing = {};
};
void place_grouped(Stream& stream, const PlaceRows& place, DType type, Half half);

// Starts the product of tiles of at most `tile` rows of dense `x` ([x_bound, cols], 16 bits).
void start_grouped(Stream& stream, const GroupedProduct& product, const void* x, int64_t x_bound, int tile);
// The same where piece_product_fits; a gated product of one row (at most kMostUsesOfRow uses) takes f32.
void start_piece_product(Stream& stream, GroupedProduct product, const void* x, int tile);

}  // namespace atom::ops::gpu_kernels
