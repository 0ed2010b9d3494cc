// Descriptors with which Hopper's copy engine fetches tiles of matrices into shared memory. No device code.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "tensor/gpu.h"

namespace atom::ops::gpu_kernels {

// Bytes of a row that one copy fetches; what is fetched lies in shared memory with the 16-byte pieces of row
// r exchanged by `piece ^ r % 8` (the engine's 128-byte swizzle), so that tensor cores and ldmatrix read it
// without conflicts.
inline constexpr int kTileBytes = 128;

// `matrices` matrices of `rows` rows of `row_bytes` bytes; strides in bytes, multiples of 16, as are the
// address and the first of them. A copy fetches `tile_rows` (at most 256) rows; what lies outside is zeros.
struct MapShape {
  const void* data;
  int64_t row_bytes, rows, row_stride;
  int64_t matrices = 1, matrix_stride = 0;
  int tile_rows;
};

// Whether the driver can make descriptors (CUDA 12 and later).
bool can_map_tensors();
CUtensorMap map_tensor(const MapShape& shape);

}  // namespace atom::ops::gpu_kernels
