// How the blocks of a grouped product share its work. Device code only.
#pragma once
#include "ops/cuda/grouped_product.h"
#include "ops/cuda/hopper.h"

namespace atom::ops::gpu_kernels {

// How a tile of kN rows of x is worked on.
template <class T, int kN>
struct Cut {
  static constexpr bool kPieced = std::is_same_v<T, Fp4Pieces>;
  static constexpr int kStageCols = kPieced ? kPieceStep * kPieceCols : kTileBytes / 16 * Vec<T>::kElements;
  // Few rows: each warp multiplies by itself, which needs x in registers but no other warp.
  static constexpr bool kAlone = !kPieced && kN * kStageCols <= 8 * 256;
  static constexpr int kWarps = kPieced && kN == 128 ? 12 : 8;  // that multiply
  // Of a piece's fragments: three groups of warps need not widen ahead, and have no registers for it.
  static constexpr int kPlaces = kWarps == 12 ? 1 : 2;
  static constexpr bool kWhole = kN >= 64;
  static constexpr int kThreads = 32 * (kWarps + 1);                          // one warp fetches
  static constexpr int kBlocks = kN == 128 ? 1 : kAlone && kN <= 16 ? 3 : 2;  // of a processor
  static constexpr int kM = std::is_same_v<T, Bf16> && kN == 128 ? 2 : 1;     // tiles of 16 rows of a warp
  static constexpr int kHalfRows =
      8 * kM * kWarps;  // gate's or up's; the first or second half of a plain tile
  // In pieces: of a stage, and scales behind both halves.
  static constexpr int kPiecesBytes = kPieceStep * kPieceBytes, kScalesBytes = kPieceStep * kPieceScaleBytes;
  static constexpr int kHalfBytes = kPieced ? kHalfRows / kPieceRows * kPiecesBytes : kHalfRows * kTileBytes;
  static constexpr int kHalfScales = kPieced ? (kHalfRows / kPieceRows * kScalesBytes + 127) / 128 * 128 : 0;
  static constexpr int kXBegin = (2 * (kHalfBytes + kHalfScales) + 1023) / 1024 * 1024;  // in a stage
  static constexpr int kSlices = 2 * kStageCols / kTileBytes;  // tiles of x of a stage
  static constexpr int kXBytes = kSlices * kN * kTileBytes, kStageBytes = kXBegin + kXBytes;
  static constexpr int kFetchedBytes =
      2 * (kHalfBytes + (kPieced ? kHalfRows / kPieceRows * kScalesBytes : 0)) + kXBytes;
  static constexpr int kMemory = kBlocks == 1 ? 208 << 10 : kBlocks == 2 ? 108 << 10 : 73 << 10;
  static constexpr int kStages = kMemory / kStageBytes;
  static_assert(kStages >= 2);
};

#if ATOM_HOPPER

// The stages of this block, one after the other. `whole`: blocks take whole tiles of the result in turn, so
// that those that share x or w are worked on together, if there are many; otherwise each has an equal run of
// stages.
struct Walk {
  int64_t total, first;  // stages of all blocks; of those before this
  int blocks;            // that have some
  int left = 0;          // stages, with this one
  int item, k;           // which tile of the result; which stage of its columns
  int step = 1;          // from item to item
  int row_tile;
  UseTile tile;

  __device__ Walk(const GroupedProduct& a, int tile_rows, bool whole) {
    const int tiles = a.tiles != nullptr ? *a.made : (a.x_rows + tile_rows - 1) / tile_rows;
    const int items = tiles * a.row_tiles;
    total = int64_t{items} * a.k_stages;
    blocks = static_cast<int>(total < gridDim.x ? total : gridDim.x);
    const int block = blockIdx.x;
    if (block >= blocks) return;
    if (whole && items >= 2 * blocks) {
      step = blocks;
      item = block;
      k = 0;
      left = (items - block + blocks - 1) / blocks * a.k_stages;
    } else {
      first = begin_of(block);
      left = static_cast<int>(begin_of(block + 1) - first);
      item = static_cast<int>(first / a.k_stages);
      k = static_cast<int>(first % a.k_stages);
    }
    find(a, tile_rows);
  }
  __device__ int64_t begin_of(int block) const { return total * block / blocks; }
  __device__ int block_of(int64_t stage) const {
    return static_cast<int>(((stage + 1) * blocks - 1) / total);
  }
  __device__ void find(const GroupedProduct& a, int tile_rows) {
    if (a.tiles == nullptr) {
      const int parts = (a.x_rows + tile_rows - 1) / tile_rows;
      row_tile = item / parts;
      const int part = item - row_tile * parts, begin = part * tile_rows;
      tile = {0, begin, min(tile_rows, a.x_rows - begin), part, parts};
      return;
    }
    // The tiles of an expert stand together, and so do their items.
    const int any = item / a.row_tiles;
    tile = a.tiles[any];
    const int first_tile = any - tile.part, inside = item - first_tile * a.row_tiles;
    row_tile = inside / tile.parts;
    const int part = inside - row_tile * tile.parts;
    if (part != tile.part) tile = a.tiles[first_tile + part];
  }
  __device__ void next(const GroupedProduct& a, int tile_rows) {
    --left;
    if (++k < a.k_stages) return;
    k = 0;
    item += step;
    if (left > 0) find(a, tile_rows);
  }
};

#endif  // ATOM_HOPPER

}  // namespace atom::ops::gpu_kernels
