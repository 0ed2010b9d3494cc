#include "tensor/mxfp4_pieces.h"

#include <algorithm>
#include <cstring>

namespace atom {
namespace {

// Sixteen elements, low four bits first, with their bits at their places.
uint64_t placed(uint64_t w) {
  constexpr uint64_t kEach = 0x0001'0001'0001'0001;                // half of a word
  return (w & 0x0008 * kEach) << 12 | (w & 0x0007 * kEach) << 9 |  // element 0
         (w & 0x0080 * kEach) | (w & 0x0070 * kEach) >> 3 |        // 1
         (w & 0x0800 * kEach) >> 3 | (w & 0x0700 * kEach) << 4 |   // 2
         (w & 0x8000 * kEach) >> 15 | (w & 0x7000 * kEach) >> 8;   // 3
}

}  // namespace

void cut_into_pieces(const Tensor& data, const Tensor& scales, std::byte* to) {
  constexpr int kRowBytes = kPieceCols / 2, kLongs = kRowBytes / 8;
  CHECK(data.dtype == DType::f4e2m1x2 && scales.dtype == DType::e8m0 && data.dim(0) % kPieceRows == 0 &&
            data.dim(1) == 32 * scales.dim(1) && data.dim(0) == scales.dim(0),
        "pieces of {} with scales {}", data.to_string(), scales.to_string());
  const int64_t row_bytes = data.dim(1) / 2;
  for (int64_t first = 0; first < data.dim(0); first += kPieceRows) {
    for (int64_t at = 0; at < row_bytes; at += kRowBytes, to += kPieceBytes) {
      const auto bytes = static_cast<size_t>(std::min<int64_t>(kRowBytes, row_bytes - at));
      uint32_t words[kPieceRows][kRowBytes / 4];
      for (int r = 0; r < kPieceRows; ++r) {
        uint64_t longs[kLongs] = {};
        std::memcpy(longs, data.row_bytes(first + r) + at, bytes);
        for (uint64_t& w : longs) w = placed(w);
        uint32_t in_order[kRowBytes / 4];
        std::memcpy(in_order, longs, sizeof(longs));
        for (int b = 0; b < 2; ++b) {
          for (int t = 0; t < 4; ++t) words[r][2 * t + b] = in_order[4 * b + t];
        }
        const std::byte* from = scales.row_bytes(first + r) + at / 16;
        to[256 + 2 * r] = from[0];
        to[257 + 2 * r] = bytes == kRowBytes ? from[1] : std::byte{0};
      }
      std::memcpy(to, words, sizeof(words));
    }
  }
}

}  // namespace atom
