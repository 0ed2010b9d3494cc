// MXFP4 (E2M1 with an E8M0 scale per 32 columns) as Hopper's kernels want it, DType::mxfp4_8x64: cut into
// pieces of 8 rows by 64 columns. 3 to 15 pieces, in the order of columns, are a run: 256 bytes of elements
// for each, then 16 bytes of scales for each, then what is missing to whole lines of 128 bytes; 15 pieces are
// 4 KB. All runs of a matrix are alike, and those of 8 rows stand together, so that whole rows are one piece
// of memory and a copy of a run needs nothing else. Columns are filled up with zeros.
//
// Word 2 l + b of a piece has the eight elements from column 32 b + 8 (l % 4) on of row l / 4, and byte 2 r +
// b of its scales is that of row r for columns 32 b on: thread l of a warp loads eight bytes, which are its
// part of the operand of a tensor core. Bits of elements lie so that few instructions widen them. In the
// lower half of a word, the sign and the size of element 0 are bits 15 and 11 to 9, of element 1: 7 and 3 to
// 1, of 2: 8 and 14 to 12, of 3: 0 and 6 to 4; elements 4 to 7 have the same places in the upper half.
#pragma once
#include "tensor/tensor.h"

namespace atom {

inline constexpr int kPieceRows = 8, kPieceCols = 64;
inline constexpr int kPieceBytes = 256, kPieceScaleBytes = 16;
inline constexpr int kMostPieces = 15, kPieceStep = 3;  // of a run, a multiple of the latter

// The runs of 8 rows.
struct PieceRuns {
  int count = 0, pieces = 0, bytes = 0;                          // pieces and bytes of one
  constexpr int scales() const { return pieces * kPieceBytes; }  // where they begin
};
constexpr PieceRuns piece_runs(int64_t cols) {
  const int all = static_cast<int>((cols + kPieceCols - 1) / kPieceCols);
  const int count = (all + kMostPieces - 1) / kMostPieces, each = (all + count - 1) / count;
  const int pieces = (each + kPieceStep - 1) / kPieceStep * kPieceStep;
  return {count, pieces, pieces * kPieceBytes + (pieces * kPieceScaleBytes + 127) / 128 * 128};
}
// Bytes of `rows` rows, a multiple of kPieceRows.
constexpr int64_t piece_bytes(int64_t rows, int64_t cols) {
  const PieceRuns runs = piece_runs(cols);
  return rows / kPieceRows * runs.count * runs.bytes;
}

// A matrix in pieces at `data`.
Tensor piece_tensor(void* data, int64_t rows, int64_t cols, Device device);

// Writes the pieces of `data` ([rows, cols] f4e2m1x2) with `scales` ([rows, cols / 32] e8m0) to `to`; rows a
// multiple of kPieceRows, columns of 32. Both may have strided rows.
void cut_into_pieces(const Tensor& data, const Tensor& scales, std::byte* to);

}  // namespace atom
