// A gated delta net's decodes in one kernel: convolution, head norms, gates, the rule and the gated norm.
//   S = g S; u = beta (v - Sᵀk); S += k uᵀ; out = gated_norm(Sᵀq), as ops/delta_rule.h says
// Bound: bytes of S, read and written once. Grid: (sequence, value head). 32 lanes have all columns of some
// rows of S in registers: these and the convolution's rows are of earlier steps, so they are on their way
// before the kernels of this step have ended.
#include <cmath>

#include "ops/gpu/decode_kernels.h"
#include "ops/gpu/elements.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kThreads = 512, kTeams = kThreads / 32;
constexpr int kDim = 128;             // of a key and a value at most
constexpr int kRows = kDim / kTeams;  // of S, of a thread
constexpr int kMaxKernel = 4;
constexpr float kNormEps = 1e-6f;
static_assert(3 * kDim <= kThreads);  // a thread per channel

struct GatedDeltaArguments {
  float* out;
  const float *x, *conv_weight, *a, *b, *gate, *a_log, *dt_bias, *norm;
  float *conv_state, *state;
  int32_t* counters;  // [sequence, key head]: value heads that have read the convolution's rows
  int64_t out_stride, x_stride, a_stride, b_stride, gate_stride, conv_stride, state_stride;
  const RecurrentSequence* sequences;
  int k_heads, v_heads, k_dim, v_dim, kernel;
  float q_scale, eps;
};

// Over 32 lanes, which may be half a warp.
__device__ inline float lanes_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
__device__ inline float silu(float x) { return x / (1 + expf(-x)); }

__global__ void __launch_bounds__(kThreads) gated_delta_kernel(GatedDeltaArguments a) {
  __shared__ float mixed[3 * kDim];  // query, key, value after the convolution
  __shared__ __align__(16) float remembered[kTeams][kDim], asked[kTeams][kDim], updates[kDim];
  __shared__ float squares[kDim / 32];
  __shared__ bool reads_last;
  let_next_start();

  const RecurrentSequence s = a.sequences[blockIdx.x];
  const int head = blockIdx.y, per_key = a.v_heads / a.k_heads, key_head = head / per_key;
  const int lane = threadIdx.x % 32, team = threadIdx.x / 32;
  float* out = a.out + s.first_row * a.out_stride + int64_t{head} * a.v_dim;
  if (s.slot < 0) {
    wait_for_previous();
    if (threadIdx.x < a.v_dim) out[threadIdx.x] = 0;
    return;
  }
  float* state = a.state + s.slot * a.state_stride + int64_t{head} * a.k_dim * a.v_dim;
  const bool in_columns = lane * 4 < a.v_dim;
  auto place = [&](int i) {
    return reinterpret_cast<float4*>(state + int64_t{team + i * kTeams} * a.v_dim) + lane;
  };
  float4 S[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    S[i] = in_columns && team + i * kTeams < a.k_dim ? *place(i) : float4{0, 0, 0, 0};
  }
  // This thread's channel, of the query's, the key's and the value's.
  const int own = threadIdx.x, channels = 2 * a.k_heads * a.k_dim + a.v_heads * a.v_dim;
  const bool in_keys = own < 2 * a.k_dim, in_channels = own < 2 * a.k_dim + a.v_dim;
  const int channel = own < a.k_dim ? key_head * a.k_dim + own
                      : in_keys     ? (a.k_heads + key_head - 1) * a.k_dim + own
                                    : 2 * (a.k_heads - 1) * a.k_dim + head * a.v_dim + own;
  float* conv_state = a.conv_state + s.slot * a.conv_stride + channel;
  float before[kMaxKernel - 1] = {}, taps[kMaxKernel] = {};
#pragma unroll
  for (int j = 0; j < kMaxKernel; ++j) {
    if (!in_channels || j >= a.kernel) continue;
    taps[j] = a.conv_weight[channel * a.kernel + j];
    if (j < a.kernel - 1) before[j] = conv_state[int64_t{j} * channels];
  }
  const float rate = expf(a.a_log[head]), dt_bias = a.dt_bias[head];
  const float norm = own < a.v_dim ? a.norm[own] : 0;
  wait_for_previous();

  const int64_t row = s.first_row;
  const float x = in_channels ? a.x[row * a.x_stride + channel] : 0;
  const float step = a.a[row * a.a_stride + head] + dt_bias, b = a.b[row * a.b_stride + head];
  const float gate = own < a.v_dim ? a.gate[row * a.gate_stride + int64_t{head} * a.v_dim + own] : 0;
  if (in_channels) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kMaxKernel; ++j) {
      if (j < a.kernel) sum += taps[j] * (j < a.kernel - 1 ? before[j] : x);
    }
    mixed[own] = silu(sum);
  }
  const float decay = expf(-rate * (step > 20 ? step : log1pf(expf(step)))), beta = 1 / (1 + expf(-b));
  __syncthreads();
  // The value heads of a key head read the same rows of the convolution: the last of them moves these on.
  int readers = 0;
  int32_t* counter = a.counters + int64_t{blockIdx.x} * a.k_heads + key_head;
  if (threadIdx.x == kThreads - 1) {
    __threadfence();
    readers = atomicAdd(counter, 1);
  }

  const float *q = mixed, *k = mixed + a.k_dim, *v = mixed + 2 * a.k_dim;
  float q_squares = 0, k_squares = 0, mix = 0;
#pragma unroll
  for (int j = 0; j < kDim / 32; ++j) {
    const int d = lane + j * 32;
    if (d >= a.k_dim) continue;
    q_squares += q[d] * q[d];
    k_squares += k[d] * k[d];
    mix += q[d] * k[d];
  }
  const float q_scale = a.q_scale / sqrtf(lanes_sum(q_squares) + kNormEps);
  const float k_scale = 1 / sqrtf(lanes_sum(k_squares) + kNormEps);
  mix = lanes_sum(mix) * q_scale * k_scale;
  float4 sk = {0, 0, 0, 0}, sq = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = team + i * kTeams;
    if (r >= a.k_dim) continue;
    sk = {sk.x + S[i].x * k[r], sk.y + S[i].y * k[r], sk.z + S[i].z * k[r], sk.w + S[i].w * k[r]};
    sq = {sq.x + S[i].x * q[r], sq.y + S[i].y * q[r], sq.z + S[i].z * q[r], sq.w + S[i].w * q[r]};
  }
  reinterpret_cast<float4*>(remembered[team])[lane] = sk;
  reinterpret_cast<float4*>(asked[team])[lane] = sq;
  if (threadIdx.x == kThreads - 1) {
    reads_last = readers == per_key - 1;
    if (reads_last) *counter = 0;
  }
  __syncthreads();
  float value = 0;
  if (own < kDim) {
    float memory = 0, answer = 0;
#pragma unroll
    for (int t = 0; t < kTeams; ++t) {
      memory += remembered[t][own];
      answer += asked[t][own];
    }
    const float u = own < a.v_dim ? beta * (v[own] - decay * k_scale * memory) : 0;
    value = own < a.v_dim ? decay * q_scale * answer + mix * u : 0;
    updates[own] = u;
    const float sum = lanes_sum(value * value);
    if (lane == 0) squares[team] = sum;
  }
  __syncthreads();
  if (own < a.v_dim) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) sum += squares[i];
    const float scale = 1 / sqrtf(sum / static_cast<float>(a.v_dim) + a.eps);
    out[own] = value * scale * norm * silu(gate);
  }
  if (s.dropped > 0) return;
  const float4 u = reinterpret_cast<const float4*>(updates)[lane];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = team + i * kTeams;
    if (!in_columns || r >= a.k_dim) continue;
    const float key = k[r] * k_scale;
    *place(i) = {decay * S[i].x + key * u.x, decay * S[i].y + key * u.y, decay * S[i].z + key * u.z,
                 decay * S[i].w + key * u.w};
  }
  if (!in_channels || (in_keys && !reads_last)) return;
#pragma unroll
  for (int j = 0; j < kMaxKernel - 1; ++j) {
    if (j < a.kernel - 1)
      conv_state[int64_t{j} * channels] = j + 1 < a.kernel - 1 ? before[(j + 1) % (kMaxKernel - 1)] : x;
  }
}

}  // namespace

const char* refuse_gated_delta_decode(const Stream&, const GatedDelta& op) {
  const DeltaRule& r = op.rule;
  const int64_t tokens = r.out.dim(0);
  if (static_cast<int64_t>(r.sequences.size()) != tokens) return "sequences have several rows";
  if (r.k_dim > kDim || r.v_dim > kDim || r.v_dim % 4 != 0) return "for heads of up to 128 lanes, in fours";
  if (op.conv.kernel > kMaxKernel) return "for convolutions over up to 4 rows";
  if (op.conv.out.dim(1) != int64_t{2} * r.k_heads * r.k_dim + int64_t{r.v_heads} * r.v_dim) {
    return "the convolution has other channels than the rule";
  }
  if (!aligned16(r.state.data) || r.state.strides[0] % 4 != 0) return "states are not aligned";
  if (tokens * r.k_heads > gpu::Queue::kCounters) return "too many sequences";
  return nullptr;
}

void gated_delta_decode(Stream& stream, const GatedDelta& op) {
  const DeltaRule& r = op.rule;
  if (r.sequences.empty()) return;
  const GatedDeltaArguments a{.out = r.out.as<float>(),
                              .x = op.conv.x.as<float>(),
                              .conv_weight = op.conv.weight.as<float>(),
                              .a = r.a.as<float>(),
                              .b = r.b.as<float>(),
                              .gate = op.norm.gate.as<float>(),
                              .a_log = r.a_log.as<float>(),
                              .dt_bias = r.dt_bias.as<float>(),
                              .norm = op.norm.weight.as<float>(),
                              .conv_state = op.conv.state.as<float>(),
                              .state = r.state.as<float>(),
                              .counters = stream.queue().counters(),
                              .out_stride = r.out.strides[0],
                              .x_stride = op.conv.x.strides[0],
                              .a_stride = r.a.strides[0],
                              .b_stride = r.b.strides[0],
                              .gate_stride = op.norm.gate.strides[0],
                              .conv_stride = op.conv.state.strides[0],
                              .state_stride = r.state.strides[0],
                              .sequences = r.sequences.data(),
                              .k_heads = r.k_heads,
                              .v_heads = r.v_heads,
                              .k_dim = r.k_dim,
                              .v_dim = r.v_dim,
                              .kernel = op.conv.kernel,
                              .q_scale = 1 / std::sqrt(static_cast<float>(r.k_dim)),
                              .eps = op.norm.eps};
  launch(stream.queue(), gated_delta_kernel,
         dim3(static_cast<unsigned>(r.sequences.size()), static_cast<unsigned>(r.v_heads)), dim3(kThreads), 0,
         a);
}

}  // namespace atom::ops::gpu_kernels
