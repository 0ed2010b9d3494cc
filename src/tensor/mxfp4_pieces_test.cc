#include "tensor/mxfp4_pieces.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace atom {
namespace {

// The element at (row, col) of 8 rows and its scale, read as the header says.
struct Read {
  uint8_t element, scale;
};
Read read(const std::byte* rows, const PieceRuns& runs, int row, int col) {
  const int number = col / 64, run = number / runs.pieces, piece = number % runs.pieces;
  const int b = col % 64 / 32, lane = row * 4 + col % 32 / 8, e = col % 8;
  const std::byte* of_run = rows + run * runs.bytes;
  uint32_t word;
  std::memcpy(&word, of_run + piece * 256 + 4 * (2 * lane + b), 4);
  const uint32_t half = e < 4 ? word & 0xFFFF : word >> 16;
  constexpr int kSign[4] = {15, 7, 8, 0}, kSize[4] = {9, 1, 12, 4};
  return {static_cast<uint8_t>((half >> kSign[e % 4] & 1) << 3 | (half >> kSize[e % 4] & 7)),
          static_cast<uint8_t>(of_run[runs.pieces * 256 + piece * 16 + 2 * row + b])};
}

TEST(Mxfp4Pieces, RunsAreWholeLinesOfAtMostFourKilobytes) {
  for (int64_t cols = 32; cols < 10'000; cols += 32) {
    const PieceRuns runs = piece_runs(cols);
    ASSERT_EQ(runs.bytes % 128, 0);
    ASSERT_LE(runs.bytes, 4096);
    ASSERT_GE(runs.bytes, runs.pieces * 272);
    ASSERT_EQ(runs.pieces % 3, 0);
    ASSERT_GE(int64_t{runs.count} * runs.pieces * 64, cols);
  }
  EXPECT_EQ(piece_bytes(16, 2880), 2 * 3 * 4096);
}

TEST(Mxfp4Pieces, HoldEveryElementAndScaleAndZerosBeyondTheColumns) {
  std::mt19937 rng(3);
  for (const int64_t cols : {32, 64, 96, 1440, 2880}) {
    const int64_t rows = 24, stride = cols / 2 + 48, scale_stride = cols / 32 + 5;
    std::vector<uint8_t> data(static_cast<size_t>(rows * stride)),
        scales(static_cast<size_t>(rows * scale_stride));
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(rng());
    for (uint8_t& byte : scales) byte = static_cast<uint8_t>(1 + rng() % 254);
    Tensor d = make_tensor(data.data(), DType::f4e2m1x2, {rows, cols});
    d.strides[0] = 2 * stride;
    Tensor s = make_tensor(scales.data(), DType::e8m0, {rows, cols / 32});
    s.strides[0] = scale_stride;
    const PieceRuns runs = piece_runs(cols);
    const int64_t padded = int64_t{runs.count} * runs.pieces * kPieceCols;
    std::vector<std::byte> out(static_cast<size_t>(piece_bytes(rows, cols) + 1), std::byte{0xA5});
    cut_into_pieces(d, s, out.data());
    EXPECT_EQ(out.back(), std::byte{0xA5});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < padded; ++c) {
        const Read got =
            read(&out[r / 8 * piece_bytes(8, cols)], runs, static_cast<int>(r % 8), static_cast<int>(c));
        const bool there = c < cols;
        ASSERT_EQ(got.element, there ? data[r * stride + c / 2] >> c % 2 * 4 & 15 : 0) << r << ", " << c;
        ASSERT_EQ(got.scale, there ? scales[r * scale_stride + c / 32] : 0) << r << ", " << c;
      }
    }
  }
}

}  // namespace
}  // namespace atom
