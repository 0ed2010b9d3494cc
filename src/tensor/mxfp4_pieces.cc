#include "tensor/mxfp4_pieces.h"

#include <algorithm>
#include <cstring>

namespace atom {
namespace {

// Eight elements, low four bits first, with their bits at their places.
uint32_t placed(uint32_t w) {
  constexpr uint32_t kEach = 0x0001'0001;
  return (w & 0x0008 * kEach) << 12 | (w & 0x0007 * kEach) << 9 |  // element 0 of a half
         (w & 0x0080 * kEach) | (w & 0x0070 * kEach) >> 3 |        // 1
         (w & 0x0800 * kEach) >> 3 | (w & 0x0700 * kEach) << 4 |   // 2
         (w & 0x8000 * kEach) >> 15 | (w & 0x7000 * kEach) >> 8;   // 3
}

// Writes a piece and its scales; `cols` of its columns exist.
void cut_piece(const Tensor& data, const Tensor& scales, int64_t first_row, int64_t first_col, int64_t cols,
               std::byte* to, std::byte* scales_to) {
  constexpr int kRowBytes = kPieceCols / 2;
  constexpr int kWords = kRowBytes / 4;
  uint32_t stored[kPieceRows][kWords] = {}, words[kPieceRows][kWords];
  for (int r = 0; r < kPieceRows; ++r)
    std::memcpy(stored[r], data.row_bytes(first_row + r) + first_col / 2, static_cast<size_t>(cols / 2));
  for (auto& row : stored) {
    for (uint32_t& word : row) word = placed(word);
  }
  for (int r = 0; r < kPieceRows; ++r) {
    for (int b = 0; b < 2; ++b) {
      for (int t = 0; t < 4; ++t) words[r][2 * t + b] = stored[r][4 * b + t];
    }
    const std::byte* from = scales.row_bytes(first_row + r) + first_col / 32;
    for (int b = 0; b < 2; ++b) scales_to[2 * r + b] = 32 * b < cols ? from[b] : std::byte{0};
  }
  static_assert(sizeof(words) == kPieceBytes);
  std::memcpy(to, words, sizeof(words));
}

}  // namespace

Tensor piece_tensor(void* data, int64_t rows, int64_t cols, Device device) {
  Tensor t = make_tensor(data, DType::mxfp4_8x64, {rows, cols}, device);
  t.strides[0] = 2 * piece_bytes(kPieceRows, cols) / kPieceRows;  // in elements, two of which count as a byte
  return t;
}

void cut_into_pieces(const Tensor& data, const Tensor& scales, std::byte* to) {
  CHECK(data.dtype == DType::f4e2m1x2 && scales.dtype == DType::e8m0 && data.dim(0) % kPieceRows == 0 &&
            data.dim(1) == 32 * scales.dim(1) && data.dim(0) == scales.dim(0),
        "pieces of {} with scales {}", data.to_string(), scales.to_string());
  const PieceRuns runs = piece_runs(data.dim(1));
  for (int64_t row = 0; row < data.dim(0); row += kPieceRows) {
    for (int run = 0; run < runs.count; ++run, to += runs.bytes) {
      const int scale_bytes = runs.pieces * kPieceScaleBytes;
      for (int i = 0; i < runs.pieces; ++i) {
        const int64_t col = int64_t{run * runs.pieces + i} * kPieceCols;
        std::byte *piece = to + i * kPieceBytes, *of_piece = to + runs.scales() + i * kPieceScaleBytes;
        const int64_t cols = std::clamp<int64_t>(data.dim(1) - col, 0, kPieceCols);
        if (cols > 0) {
          cut_piece(data, scales, row, col, cols, piece, of_piece);
        } else {
          std::memset(piece, 0, kPieceBytes);
          std::memset(of_piece, 0, kPieceScaleBytes);
        }
      }
      std::memset(to + runs.scales() + scale_bytes, 0,
                  static_cast<size_t>(runs.bytes - runs.scales() - scale_bytes));
    }
  }
}

}  // namespace atom
