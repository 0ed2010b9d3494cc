// Experts of any storage in float32: the plain algorithm, oracle of the faster entries.
//   h[use] = act(gate · x[token], up · x[token]);  out[token] = sum over its uses of weight * (down · h[use]
//   + bias)
// Bound: the bytes of the experts, read anew by every use. Grid: (rows, uses), then (rows, tokens); a warp
// per row.
#include <algorithm>

#include "ops/gpu/experts.h"
#include "ops/gpu/moe_kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 8;
constexpr int64_t kScratchBytes = int64_t{256} << 20;  // about; bounds the tokens of one pass
constexpr int64_t kMaxGridY = 65535;

template <class T>
__device__ float row_product(const StoredMatrix& m, int row, const float* x, int cols) {
  float sum = 0;
  for (int c = threadIdx.x % kWarp; c < cols; c += kWarp) sum += stored_value(m, row, c, T{}) * x[c];
  return warp_sum(sum);
}

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    up_rows_kernel(float* h, const float* x, int64_t x_stride, Experts experts, Routing routing) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x * kWarps + threadIdx.x / kWarp, use = blockIdx.y;
  const int expert = experts.local(routing.id(use));
  if (row >= experts.inter || expert < 0) return;
  x += use / routing.k * x_stride;
  const float gate = row_product<T>(experts.gate.of(expert), row, x, experts.hidden);
  const float up = row_product<T>(experts.up.of(expert), row, x, experts.hidden);
  if (threadIdx.x % kWarp != 0) return;
  h[int64_t{use} * experts.inter + row] =
      experts.activate(gate + experts.gate_bias.of(expert, row), up + experts.up_bias.of(expert, row));
}

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    down_rows_kernel(float* out, int64_t out_stride, const float* h, Experts experts, Routing routing,
                     bool accumulate) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x * kWarps + threadIdx.x / kWarp, token = blockIdx.y;
  if (row >= experts.hidden) return;
  out += token * out_stride + row;
  float sum = accumulate ? *out : 0;
  for (int use = token * routing.k; use < (token + 1) * routing.k; ++use) {
    const int expert = experts.local(routing.id(use));
    if (expert < 0) continue;
    const float product =
        row_product<T>(experts.down.of(expert), row, h + int64_t{use} * experts.inter, experts.inter);
    sum += routing.weight(use) * (product + experts.down_bias.of(expert, row));
  }
  sync_warp();  // all have read *out
  if (threadIdx.x % kWarp == 0) *out = sum;
}

ExpertMatrix expert_matrix(const WeightPart& first, const WeightPart& second) {
  ExpertMatrix m{.first = stored_matrix(first)};
  const StoredMatrix next = stored_matrix(second);
  m.data_step = next.data - m.first.data;
  m.scale_step = next.scales - m.first.scales;
  return m;
}

ExpertBias expert_bias(std::span<const Tensor> biases, int64_t begin) {
  if (biases.empty()) return {};
  const float* first = biases.front().as<float>();
  return {first + begin, biases.size() > 1 ? biases[1].as<float>() - first : 0};
}

}  // namespace

Experts experts_of(const MoeExperts& op) {
  const size_t second = op.down.size() > 1 ? 1 : 0;
  const int64_t inter = op.down.front().cols;
  // The gate half of a matrix of one part or two, and the up half.
  auto half_of = [&](const Weight& w, bool up) {
    if (w.parts.size() == 2 && w.parts[0].data.dim(0) == inter) return w.parts[up ? 1 : 0];
    CHECK(w.parts.size() == 1, "gate and up of an expert in {} parts", w.parts.size());
    return w.parts.front().rows(up ? inter : 0, inter);
  };
  auto half = [&](bool up) {
    return expert_matrix(half_of(op.gate_up[0], up), half_of(op.gate_up[second], up));
  };
  CHECK(op.down.front().parts.size() == 1, "down of an expert in {} parts", op.down.front().parts.size());
  return {.gate = half(false),
          .up = half(true),
          .down = expert_matrix(op.down[0].parts.front(), op.down[second].parts.front()),
          .gate_bias = expert_bias(op.gate_up_bias, 0),
          .up_bias = expert_bias(op.gate_up_bias, inter),
          .down_bias = expert_bias(op.down_bias, 0),
          .count = static_cast<int>(op.down.size()),
          .first_expert = static_cast<int>(op.first_expert),
          .hidden = static_cast<int>(op.x.dim(1)),
          .inter = static_cast<int>(inter),
          .activation = op.activation,
          .limit = op.limit,
          .alpha = op.alpha};
}

const char* refuse_experts_by_rows(const Stream&, const MoeExperts& op) {
  return refuse_matrices(op, [](const WeightPart& part) {
    return part.data.dtype == DType::mxfp4_8x64 ? "in pieces" : nullptr;
  });
}

void experts_by_rows(Stream& stream, const MoeExperts& op) {
  const int64_t tokens = op.x.dim(0), k = op.ids.dim(1);
  if (tokens == 0) return;
  const Experts experts = experts_of(op);
  const int64_t bytes = k * experts.inter * static_cast<int64_t>(sizeof(float));  // of a token
  const int64_t pass = std::clamp<int64_t>(std::min(kScratchBytes / bytes, kMaxGridY / k), 1, tokens);
  auto* h = static_cast<float*>(stream.queue().scratch(pass * bytes));
  auto blocks = [](int64_t rows, int64_t y) {
    return dim3(static_cast<unsigned>(ceil_div(rows, kWarps)), static_cast<unsigned>(y));
  };
  for (int64_t begin = 0; begin < tokens; begin += pass) {
    const int64_t count = std::min(pass, tokens - begin);
    MoeExperts part = op;
    part.ids = op.ids.rows(begin, count);
    part.weights = op.weights.rows(begin, count);
    const Routing routing(part);
    with_stored_element(op.gate_up.front().parts.front().data.dtype, [&](auto element) {
      launch(stream.queue(), up_rows_kernel<decltype(element)>, blocks(experts.inter, count * k),
             dim3(kWarps * kWarp), 0, h, op.x.row<float>(begin), op.x.strides[0], experts, routing);
    });
    with_stored_element(op.down.front().parts.front().data.dtype, [&](auto element) {
      launch(stream.queue(), down_rows_kernel<decltype(element)>, blocks(experts.hidden, count),
             dim3(kWarps * kWarp), 0, op.out.row<float>(begin), op.out.strides[0], h, experts, routing,
             op.accumulate);
    });
  }
}

}  // namespace atom::ops::gpu_kernels
