// What one way of multiplying weight rows by activations offers to the drivers in linear_rows.cc. Included by
// the files of every instruction set, so it holds no code.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace atom::ops {

// Activations are prepared in tiles of this many tokens; a job starts on such a tile.
inline constexpr int64_t kTokenTile = 16;

// [tokens, cols] float32 with `stride` floats between rows.
struct Activations {
  const float* data;
  int64_t stride, tokens, cols;
};

// The scales of a job's weights (ops::BlockScales without shape): of row r, those in row
// (r + first_row) / block_rows, and there one per block_cols columns.
struct RowScales {
  const std::byte* data = nullptr;  // null: none. f32 beside f8e4m3, e8m0 beside f4e2m1x2
  int64_t stride = 0;               // bytes between rows of scales
  int64_t block_rows = 1, block_cols = 1, first_row = 0, first_col = 0;
};

// A block of the product: `rows` weight rows by tokens [first_token, first_token + tokens).
struct RowJob {
  DType type;
  const std::byte* w;  // any alignment
  int64_t w_stride;    // bytes between rows
  RowScales scales;
  int64_t rows;
  Activations x;         // the whole op's
  const void* prepared;  // what prepare() wrote; null if the kernel has none
  int64_t first_token, tokens;
  std::byte* scratch;  // scratch_bytes(cols), this thread's own, aligned to 64 bytes
  float* out;          // of row 0 and first_token
  int64_t out_stride;  // floats between tokens
};

struct RowKernel {
  // Activations in the kernel's own form: its size, and the function that writes the tokens
  // [begin, end) of it, begin on a tile. Null: the kernel reads the activations themselves.
  int64_t (*prepared_bytes)(int64_t tokens, int64_t cols);
  void (*prepare)(const Activations& x, int64_t begin, int64_t end, void* prepared);
  int64_t (*scratch_bytes)(int64_t cols);  // null: none
  void (*rows)(const RowJob& job);
  // gate[i] = silu(gate[i]) * up[i].
  void (*silu_mul)(float* gate, const float* up, int64_t n);
  int row_tile;  // jobs of a multiple of this many rows waste nothing
  // Weights of the job as float32, rows of x.cols one after the other. Null: not offered.
  void (*widen)(const RowJob& job, float* out);
};

#if defined(__x86_64__)
extern const RowKernel kRowsAvx2;        // float32, every type
extern const RowKernel kRowsAvx512;      // the same
extern const RowKernel kRowsInt8Avx2;    // activations in 8-bit blocks, GGUF types
extern const RowKernel kRowsInt8Avx512;  // the same
extern const RowKernel kRowsInt8Amx;     // the same, for many tokens
extern const RowKernel kRowsBf16Amx;     // activations in bf16; bf16 weights, and scaled ones rounded to it

// Of kRowsBf16Amx, for weights with scales beside them: its rows(), and its scratch for every type.
void scaled_tile_rows(const RowJob& job);
int64_t scaled_tile_scratch(int64_t cols);
#endif

}  // namespace atom::ops
