// Numbers to the quantised types that are stored with scales.
#pragma once
#include <cstdint>

namespace atom {

// Both take `rows` rows of `cols` finite numbers, `stride` apart.

// E4M3 in blocks of all the rows and `block_cols` columns, each divided by its scale: its largest magnitude
// over 448, or 1 for a block of zeros. `elements` are [rows, cols], `scales` [blocks].
void quantise_f8e4m3(const float* x, int64_t rows, int64_t cols, int64_t stride, int64_t block_cols,
                     uint8_t* elements, float* scales);

// MXFP4: E2M1, two a byte with the first in the low four bits, in groups of 32 columns with a power of two
// (E8M0) each: of the two that may fit the group's largest magnitude the one with the smaller squared error.
// `elements` are [rows, cols / 2], `scales` [rows, cols / 32].
inline constexpr int64_t kMxfp4Group = 32;
void quantise_mxfp4(const float* x, int64_t rows, int64_t cols, int64_t stride, uint8_t* elements,
                    uint8_t* scales);

}  // namespace atom
