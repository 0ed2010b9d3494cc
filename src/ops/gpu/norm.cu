// RMS norm, alone and with the residual add before it.
//   residual += add; out = residual / sqrt(mean(residual²) + eps) * (offset + weight)
// Bound: 4 n floats per row. Grid: one block per row; a thread keeps its first elements in registers, the
// rest it reads again. Norms are deferred: the product that reads a single row may do its norm as well, and
// one that rounds several rows has them rounded here.
#include <type_traits>

#include "comm/communicator.h"
#include "ops/gpu/block_sum.h"
#include "ops/gpu/deferred.h"
#include "ops/gpu/elements.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreadsOfFew = 512;
constexpr int kThreadsOfMany = 256;  // where there are many rows: more of them are under way
constexpr int64_t kManyRows = 1024;
constexpr int kKept = 4;  // vectors per thread

struct NormArguments {
  float* out;            // null: not wanted
  void* rounded;         // the same once more, rows one after the other; null: not wanted
  float* x;              // the residual, written back if there is an `add`
  const float* adds[2];  // null: none
  const float* weight;
  int64_t out_stride, x_stride, add_stride;
  int n;
  float eps, weight_offset;
};

template <class V>
struct Lanes;
template <>
struct Lanes<float> {
  static __device__ float add(float a, float b) { return a + b; }
  static __device__ float square(float a) { return a * a; }
  static __device__ float apply(float x, float scale, float w, float offset) {
    return x * scale * (offset + w);
  }
};
template <>
struct Lanes<float4> {
  static __device__ float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
  static __device__ float square(float4 a) { return a.x * a.x + a.y * a.y + (a.z * a.z + a.w * a.w); }
  static __device__ float4 apply(float4 x, float scale, float4 w, float offset) {
    return {x.x * scale * (offset + w.x), x.y * scale * (offset + w.y), x.z * scale * (offset + w.z),
            x.w * scale * (offset + w.w)};
  }
};

template <class T>
__device__ inline void store_rounded(T* to, int i, const float4& v) {
  __align__(8) T narrowed[4];
  narrow(v.x, narrowed[0]), narrow(v.y, narrowed[1]), narrow(v.z, narrowed[2]), narrow(v.w, narrowed[3]);
  reinterpret_cast<uint2*>(to)[i] = *reinterpret_cast<const uint2*>(narrowed);
}

// `Rounded`: the type of `rounded`; float: there is none.
template <class V, class Rounded = float, int kThreads = kThreadsOfFew>
__global__ void __launch_bounds__(kThreads) norm_kernel(NormArguments a) {
  constexpr bool kWeightsFirst = kThreads > kThreadsOfMany;  // before the wait; else they cost registers
  const int64_t row = blockIdx.x;
  const int vectors = a.n / static_cast<int>(sizeof(V) / sizeof(float));
  V* x = reinterpret_cast<V*>(a.x + row * a.x_stride);
  const V* adds[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    adds[k] = a.adds[k] == nullptr ? nullptr : reinterpret_cast<const V*>(a.adds[k] + row * a.add_stride);
  }
  const V* weight = reinterpret_cast<const V*>(a.weight);
  const bool wanted = a.out != nullptr || a.rounded != nullptr;  // else the sum alone is
  V weights[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = threadIdx.x + k * kThreads;
    if (kWeightsFirst && wanted && i < vectors) weights[k] = weight[i];
  }
  let_next_start();
  wait_for_previous();

  V kept[kKept];
  float squares = 0;
  auto load = [&](int i) {
    V value = x[i];
    if (adds[0] != nullptr) {
      V sum = adds[0][i];
      if (adds[1] != nullptr) sum = Lanes<V>::add(sum, adds[1][i]);
      value = Lanes<V>::add(value, sum);
      x[i] = value;
    }
    squares += Lanes<V>::square(value);
    return value;
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = threadIdx.x + k * kThreads;
    if (i < vectors) kept[k] = load(i);
  }
  for (int i = threadIdx.x + kKept * kThreads; i < vectors; i += kThreads) load(i);
  if (!wanted) return;

  const float scale = 1 / sqrtf(block_sum<kThreads>(squares) / static_cast<float>(a.n) + a.eps);
  V* out = reinterpret_cast<V*>(a.out + row * a.out_stride);
  auto store = [&](int i, const V& value, const V& w) {
    const V result = Lanes<V>::apply(value, scale, w, a.weight_offset);
    if (a.out != nullptr) out[i] = result;
    if constexpr (!std::is_same_v<Rounded, float>) {
      store_rounded(static_cast<Rounded*>(a.rounded) + row * a.n, i, result);
    }
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = threadIdx.x + k * kThreads;
    if (i < vectors) store(i, kept[k], kWeightsFirst ? weights[k] : weight[i]);
  }
  for (int i = threadIdx.x + kKept * kThreads; i < vectors; i += kThreads) store(i, x[i], weight[i]);
}

bool in_fours(const Tensor& t) { return !t || (aligned16(t.data) && (t.rank == 1 || t.strides[0] % 4 == 0)); }

// `add`: as DeferredShare leaves it, in at most two parts. `spent`: nobody wants `out`, if there are
// `rounded` rows.
void run_norm(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& add, const Tensor& weight,
              float eps, float weight_offset, const Tensor& rounded = {}, bool spent = false) {
  if (x.dim(0) == 0) return;
  const bool fours = x.dim(1) % 4 == 0 && in_fours(out) && in_fours(x) && in_fours(add) && in_fours(weight);
  const bool with_rounded = rounded && fours;
  const bool in_parts = add && add.dim(0) > x.dim(0);
  const NormArguments a{spent && with_rounded ? nullptr : out.as<float>(),
                        with_rounded ? rounded.data : nullptr,
                        x.as<float>(),
                        {add.as<float>(), in_parts ? add.row<float>(x.dim(0)) : nullptr},
                        weight.as<float>(),
                        out.strides[0],
                        x.strides[0],
                        add.strides[0],
                        static_cast<int>(x.dim(1)),
                        eps,
                        weight_offset};
  const bool many = with_rounded && x.dim(0) >= kManyRows && x.dim(1) <= 4 * kKept * kThreadsOfMany;
  const bool f16 = rounded.dtype == DType::f16;
  const auto kernel =
      many ? f16 ? norm_kernel<float4, F16, kThreadsOfMany> : norm_kernel<float4, Bf16, kThreadsOfMany>
      : with_rounded ? f16 ? norm_kernel<float4, F16> : norm_kernel<float4, Bf16>
      : fours ? norm_kernel<float4>
                     : norm_kernel<float>;
  launch(stream.queue(), kernel, dim3(static_cast<unsigned>(x.dim(0))),
         dim3(many ? kThreadsOfMany : kThreadsOfFew), 0, a);
  if (rounded && !with_rounded) round_rows(stream, rounded, out);
}

}  // namespace

bool DeferredNorm::makes(const float* x) const {
  return norm.out.data == x && aligned16(norm.residual.data) && aligned16(norm.weight.data);
}

void DeferredNorm::start(gpu::Queue& queue) {
  Stream stream(queue);
  run_norm(stream, norm.out, norm.residual, {}, norm.weight, norm.eps, norm.weight_offset);
}

void DeferredNorms::start(gpu::Queue& queue) {
  Stream stream(queue);
  run_norm(stream, norm.out, norm.residual, norm.add, norm.weight, norm.eps, norm.weight_offset);
}

void DeferredNorms::start_rounded(gpu::Queue& queue, const Tensor& rounded, bool spent) {
  Stream stream(queue);
  run_norm(stream, norm.out, norm.residual, norm.add, norm.weight, norm.eps, norm.weight_offset, rounded,
           spent);
}

void add_rms_norm(Stream& stream, const AddRmsNorm& op) {
  gpu::Queue& queue = stream.queue();
  AddRmsNorm rest = op;
  int64_t scratch_bytes = 0;
  if (op.reduce != nullptr && op.reduce->size() > 1) {
    op.reduce->all_reduce(stream, op.add);
  } else if (auto* share = dynamic_cast<DeferredShare*>(queue.deferred());
             share != nullptr && share->out.data == op.add.data && share->out.dims == op.add.dims) {
    const auto taken = queue.take_over();
    const DeferredShare::Rest left = share->start_adding(queue, op.residual);
    rest.add = left.parts;
    scratch_bytes = left.scratch_bytes;
  }
  if (!rest.add && !rest.out) return;
  rest.reduce = nullptr;
  if (rest.out && rest.residual.dim(0) > 1) {
    queue.defer(std::make_unique<DeferredNorms>(rest, scratch_bytes));
    return;
  }
  if (rest.add || rest.residual.dim(0) != 1) {
    run_norm(stream, rest.out, rest.residual, rest.add, rest.weight, rest.eps, rest.weight_offset);
    return;
  }
  queue.defer(std::make_unique<DeferredNorm>(rest));
}

void rms_norm(Stream& stream, const RmsNorm& op) {
  if (op.x.dim(0) == 1 && op.out.data != op.x.data) {
    stream.queue().defer(
        std::make_unique<DeferredNorm>(AddRmsNorm{op.out, op.x, {}, op.weight, op.eps, op.weight_offset}));
    return;
  }
  run_norm(stream, op.out, op.x, {}, op.weight, op.eps, op.weight_offset);
}

}  // namespace atom::ops::gpu_kernels
