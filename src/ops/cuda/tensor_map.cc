// Makes descriptors through the driver, whose function is found at run time so that nothing is linked to it.
#include "ops/cuda/tensor_map.h"

#include "tensor/gpu/vendor.h"

namespace atom::ops::gpu_kernels {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                               cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function)
                                                                         : nullptr;
  }();
  return found;
}

}  // namespace

bool can_map_tensors() { return encoder() != nullptr; }

CUtensorMap map_tensor(const MapShape& s) {
  CUtensorMap map;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(s.row_bytes), static_cast<cuuint64_t>(s.rows),
                               static_cast<cuuint64_t>(s.matrices)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(s.row_stride),
                                 static_cast<cuuint64_t>(s.matrices > 1 ? s.matrix_stride : s.row_stride)};
  const cuuint32_t box[3] = {kTileBytes, static_cast<cuuint32_t>(s.tile_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<void*>(s.data), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "a tensor map of {} x {} bytes, {} apart, {} matrices {} apart: error {}",
        s.rows, s.row_bytes, s.row_stride, s.matrices, s.matrix_stride, static_cast<int>(result));
  return map;
}

}  // namespace atom::ops::gpu_kernels
