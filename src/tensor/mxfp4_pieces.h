// MXFP4 (E2M1 with an E8M0 scale per 32 columns) as Hopper's kernels want it: cut into pieces of 8 rows by 64
// columns that hold their scales, DType::mxfp4_8x64. The pieces of 8 rows stand together, in the order of
// columns, so that whole rows are one run of memory. Columns are filled up to whole pieces with zeros.
//
// A piece is 272 bytes. Its word 2 l + b has the eight elements from column 32 b + 8 (l % 4) on of row l / 4,
// and byte 256 + 2 r + b the scale of row r for columns 32 b on: thread l of a warp loads eight bytes, which
// are its part of the operand of a tensor core. Bits of elements lie so that few instructions widen them. In
// the lower half of a word, the sign and the size of element 0 are bits 15 and 11 to 9, of element 1: 7 and 3
// to 1, of 2: 8 and 14 to 12, of 3: 0 and 6 to 4; elements 4 to 7 have the same places in the upper half.
#pragma once
#include "tensor/tensor.h"

namespace atom {

inline constexpr int kPieceRows = 8, kPieceCols = 64, kPieceBytes = 272;

constexpr int64_t piece_columns(int64_t cols) { return (cols + kPieceCols - 1) / kPieceCols * kPieceCols; }
// Bytes of `rows` rows, a multiple of kPieceRows.
constexpr int64_t piece_bytes(int64_t rows, int64_t cols) {
  return rows / kPieceRows * (piece_columns(cols) / kPieceCols) * kPieceBytes;
}

// Writes the pieces of `data` ([rows, cols] f4e2m1x2) with `scales` ([rows, cols / 32] e8m0) to `to`; rows a
// multiple of kPieceRows, columns of 32. Both may have strided rows.
void cut_into_pieces(const Tensor& data, const Tensor& scales, std::byte* to);

}  // namespace atom
