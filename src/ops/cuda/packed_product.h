// Products with stored weights on tensor cores: what the kernels of packed_product.cuh are given.
#pragma once
#include "ops/gpu/group_uses.h"

namespace atom::ops::gpu_kernels {

// Activations of 16 bits lie in groups of 8 in the order in which a type's elements are cheap to widen in
// pairs. Where element k lies:
template <class T>
__host__ __device__ constexpr int placed(int k, T) {
  return k;
}
__host__ __device__ constexpr int placed(int k, Fp8) {  // 0 2 1 3
  constexpr int kOrder[4] = {0, 2, 1, 3};
  return (k & ~3) | kOrder[k & 3];
}
__host__ __device__ constexpr int placed(int k, Fp4) {  // 0 4 1 5 2 6 3 7
  return (k & ~7) | (k & 3) << 1 | (k >> 2 & 1);
}
inline __device__ int placed_for(DType type, int k) {
  if (type == DType::f8e4m3) return placed(k, Fp8{});
  return type == DType::f4e2m1x2 ? placed(k, Fp4{}) : k;
}

// What a block multiplies with.
enum class Choice : uint8_t {
  rows,   // rows of x, with the matrix of expert 0: an ordinary product
  use,    // one use of an expert
  token,  // all uses of a token, whose products are added
  tile,   // one UseTile
};

struct PackedProduct {
  DType type = DType::bf16;  // of the matrices
  ExpertMatrix w, up;        // gated products have `up`: act(w x + bias) * (up x + up_bias)
  ExpertBias bias, up_bias;
  int rows = 0, cols = 0;  // of w
  bool gated = false;

  Choice choice = Choice::rows;
  int works = 0;  // rows, uses, tokens or tiles
  const UseTile* tiles = nullptr;
  const int32_t* order = nullptr;
  Experts experts = {.count = 1};  // activation, and which experts are here
  Routing routing = {};

  // f32, or bf16 as placed for `type`; a row per token, or per use.
  const void* x = nullptr;
  int64_t x_stride = 0;  // elements
  bool x_is_float = true, x_by_use = false;

  // f32, a row per row of x, token or use; or bf16 as placed for `inner_type`, multiplied by the weight of
  // the use.
  void* out = nullptr;
  int64_t out_stride = 0;  // elements
  bool to_inner = false;
  DType inner_type = DType::bf16;
  bool accumulate = false;  // is added to what out holds
};

// Why a matrix cannot be multiplied with; null: it can.
const char* refuse_packed_matrix(const Stream& stream, const WeightPart& part);

// The largest tile of rows of x that blocks of this kind take: 8, 16, 32 or 64.
int largest_tile(DType type);
// Starts the product. `tile`: rows of x that a block takes at most; `real_works`: about how many works are
// not empty.
void packed_product(Stream& stream, const PackedProduct& product, int tile, int64_t real_works);
// out = x rounded to bf16, placed for `type`; dense rows.
void place_rows(Stream& stream, const Tensor& out, const Tensor& x, DType type);

}  // namespace atom::ops::gpu_kernels
