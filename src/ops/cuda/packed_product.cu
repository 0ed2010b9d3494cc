// Products with stored weights on tensor cores: which matrices, which kernel, and activations of 16 bits.
#include "ops/cuda/packed_kernel.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int64_t kMaxGridY = 65535;

// One thread places 8 elements.
template <class T>
__global__ void place_kernel(uint4* out, const float* x, int64_t x_stride, int groups) {
  let_next_start();
  wait_for_previous();
  const int group = blockIdx.x * kThreads + threadIdx.x;
  if (group >= groups) return;
  const float4* from = reinterpret_cast<const float4*>(x + blockIdx.y * x_stride) + 2 * group;
  const float4 low = from[0], high = from[1];
  const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  float value[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) value[placed(k, T{})] = all[k];
  out[int64_t{blockIdx.y} * groups + group] = {
      pack(value[0], value[1], Bf16{}), pack(value[2], value[3], Bf16{}), pack(value[4], value[5], Bf16{}),
      pack(value[6], value[7], Bf16{})};
}

template <class Fn>
void with_packed_type(DType type, const Fn& fn) {
  if (type == DType::f8e4m3) return fn(Fp8{});
  if (type == DType::f4e2m1x2) return fn(Fp4{});
  fn(Bf16{});
}

bool on_16_bytes(int64_t bytes) { return bytes % 16 == 0; }

}  // namespace

const char* refuse_packed_matrix(const Stream& stream, const WeightPart& part) {
  if (stream.queue().capability() < 80) return "needs compute capability 8.0";
  const Tensor& data = part.data;
  if (data.dtype != DType::bf16 && !is_scaled_type(data.dtype)) return "for bf16, E4M3 and E2M1";
  if (!aligned16(data.data) || !on_16_bytes(dtype_bytes(data.dtype, data.dim(1))) ||
      !on_16_bytes(dtype_bytes(data.dtype, data.strides[0]))) {
    return "rows of the weight are not aligned";
  }
  const BlockScales& s = part.scale;
  if (data.dtype == DType::f4e2m1x2 && s.first_col != 0) return "the columns begin within a block of scales";
  constexpr int64_t kLargestStep = step_chunks<Fp8>(false, 1) * kChunkCols<Fp8>;
  if (data.dtype == DType::f8e4m3 && s.first_col + data.dim(1) > s.block_cols &&
      (s.block_cols < kLargestStep || !std::has_single_bit(static_cast<uint64_t>(s.block_cols)) ||
       s.first_col % kLargestStep != 0)) {
    return "scales change within a step of columns";
  }
  return nullptr;
}

int largest_tile(DType type) { return type == DType::f8e4m3 ? 32 : 64; }

void packed_product(Stream& stream, const PackedProduct& product, int tile, int64_t real_works) {
  if (product.type == DType::f8e4m3) return start_packed_fp8(stream, product, tile, real_works);
  if (product.type == DType::f4e2m1x2) return start_packed_fp4(stream, product, tile, real_works);
  start_packed_bf16(stream, product, tile, real_works);
}

void place_rows(Stream& stream, const Tensor& out, const Tensor& x, DType type) {
  const int groups = static_cast<int>(x.dim(1) / 8);
  with_packed_type(type, [&](auto element) {
    for (int64_t t = 0; t < x.dim(0); t += kMaxGridY) {
      const int64_t rows = std::min(kMaxGridY, x.dim(0) - t);
      launch(stream.queue(), place_kernel<decltype(element)>,
             dim3(static_cast<unsigned>(ceil_div(groups, kThreads)), static_cast<unsigned>(rows)),
             dim3(kThreads), 0, out.row<uint4>(t), x.row<float>(t), x.strides[0], groups);
    }
  });
}

}  // namespace atom::ops::gpu_kernels
