// The gated delta rule, as a recurrence in float32.
//   S = g S; u = beta (v - Sᵀk); S += k uᵀ; out = Sᵀq
// Bound: bytes of S for decodes, read and written once; for prompts the chain of tokens, about 0.15 µs each.
// Grid: (sequence, value head, 32 columns of S). Columns do not depend on each other: a warp has 8, whose
// rows lie in the registers of 4 lanes. Queries, keys, values and gates of a few tokens at a time are
// prepared in shared memory by the whole block; within them warps do not wait for each other. One pass over S
// gives Sᵀk and Sᵀq, and out = g Sᵀq + (k·q) u follows.
#include "ops/gpu/delta_kernels.h"
#include "ops/gpu/elements.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kColumns = 8;                // of a warp
constexpr int kBlock = kWarps * kColumns;  // columns of a block
constexpr int kChunk = 16;                 // tokens prepared at a time
constexpr int kTokens = kChunk / kWarps;   // of them by one warp
static_assert(kBlock == 32);               // a lane prepares one value
constexpr float kNormEps = 1e-6f;

struct DeltaArguments {
  float* out;
  const float *qkv, *a, *b, *a_log, *dt_bias;
  float* state;
  int64_t out_stride, qkv_stride, a_stride, b_stride, state_stride;
  const RecurrentSequence* sequences;
  int k_heads, v_heads, k_dim, v_dim;
  float q_scale;
  bool all;  // else the sequences that do not take chunks
};

// Over 32 lanes, which may be half a warp.
__device__ inline float lanes_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// kRows: rows of S that one lane holds, a multiple of 4; 4 lanes together have all k_dim. Row i of lane group
// g is row i / 4 * 16 + g * 4 + i % 4 of S.
template <int kRows>
__global__ void __launch_bounds__(kThreads) delta_kernel(DeltaArguments a) {
  constexpr int kDim = 4 * kRows;
  __shared__ __align__(16) float qs[kChunk][kDim], ks[kChunk][kDim];
  __shared__ float vs[kChunk][kBlock], decays[kChunk], betas[kChunk], mixes[kChunk];
  let_next_start();
  wait_for_previous();
  const RecurrentSequence s = a.sequences[blockIdx.x];
  if (!a.all && takes_chunks(s)) return;
  const int head = blockIdx.y, key_head = head / (a.v_heads / a.k_heads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = lane / kColumns, column0 = blockIdx.z * kBlock;
  const int column = column0 + warp * kColumns + lane % kColumns;
  const bool mine = column < a.v_dim;
  float* out = a.out + s.first_row * a.out_stride + int64_t{head} * a.v_dim;
  if (s.slot < 0) {
    for (int t = 0; t < s.rows && mine && group == 0; ++t) out[t * a.out_stride + column] = 0;
    return;
  }
  float* state = a.state + s.slot * a.state_stride + int64_t{head} * a.k_dim * a.v_dim;
  auto row_of = [&](int i) { return i / 4 * 16 + group * 4 + i % 4; };
  float S[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    S[i] = mine && row_of(i) < a.k_dim ? state[int64_t{row_of(i)} * a.v_dim + column] : 0;
  }
  auto store = [&] {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (mine && row_of(i) < a.k_dim) state[int64_t{row_of(i)} * a.v_dim + column] = S[i];
    }
  };
  const float rate = expf(a.a_log[head]);
  const int kept = s.rows - s.dropped;
  // What a chunk is prepared from, on its way while the chunk before is computed. A warp has every kWarps-th
  // token.
  constexpr int kEach = kDim / 32;
  float next_q[kTokens][kEach], next_k[kTokens][kEach], next_v[kTokens], next_a[kTokens], next_b[kTokens];
  const float dt_bias = a.dt_bias[head];
  auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int t = begin + warp + i * kWarps;
      if (t >= s.rows) break;
      const int64_t row = s.first_row + t;
      const float* q = a.qkv + row * a.qkv_stride + int64_t{key_head} * a.k_dim;
      const float* k = q + int64_t{a.k_heads} * a.k_dim;
      const float* v =
          a.qkv + row * a.qkv_stride + 2 * int64_t{a.k_heads} * a.k_dim + int64_t{head} * a.v_dim;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int d = lane + j * 32;
        next_q[i][j] = d < a.k_dim ? q[d] : 0;
        next_k[i][j] = d < a.k_dim ? k[d] : 0;
      }
      next_v[i] = column0 + lane < a.v_dim ? v[column0 + lane] : 0;
      next_a[i] = a.a[row * a.a_stride + head];
      next_b[i] = a.b[row * a.b_stride + head];
    }
  };
  load(0);
  for (int begin = 0; begin < s.rows; begin += kChunk) {
    const int tokens = min(kChunk, s.rows - begin);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int t = warp + i * kWarps;
      if (t >= tokens) break;
      float q_squares = 0, k_squares = 0, mix = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        q_squares += next_q[i][j] * next_q[i][j];
        k_squares += next_k[i][j] * next_k[i][j];
        mix += next_q[i][j] * next_k[i][j];
      }
      const float q_scale = a.q_scale / sqrtf(lanes_sum(q_squares) + kNormEps);
      const float k_scale = 1 / sqrtf(lanes_sum(k_squares) + kNormEps);
      mix = lanes_sum(mix) * q_scale * k_scale;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        qs[t][lane + j * 32] = next_q[i][j] * q_scale;
        ks[t][lane + j * 32] = next_k[i][j] * k_scale;
      }
      vs[t][lane] = next_v[i];
      if (lane == 0) {
        const float x = next_a[i] + dt_bias;
        decays[t] = expf(-rate * (x > 20 ? x : log1pf(expf(x))));
        betas[t] = 1 / (1 + expf(-next_b[i]));
        mixes[t] = mix;
      }
    }
    __syncthreads();
    load(begin + kChunk);
    for (int t = 0; t < tokens; ++t) {
      if (s.dropped > 0 && kept > 0 && begin + t == kept) store();
      float k[kRows];
      float sk[4] = {}, sq[4] = {};
#pragma unroll
      for (int i = 0; i < kRows; i += 4) {
        const float4 ki = *reinterpret_cast<const float4*>(&ks[t][i * 4 + group * 4]);
        const float4 qi = *reinterpret_cast<const float4*>(&qs[t][i * 4 + group * 4]);
        k[i] = ki.x, k[i + 1] = ki.y, k[i + 2] = ki.z, k[i + 3] = ki.w;
        sk[0] += S[i] * ki.x, sk[1] += S[i + 1] * ki.y, sk[2] += S[i + 2] * ki.z, sk[3] += S[i + 3] * ki.w;
        sq[0] += S[i] * qi.x, sq[1] += S[i + 1] * qi.y, sq[2] += S[i + 2] * qi.z, sq[3] += S[i + 3] * qi.w;
      }
      float remembered = (sk[0] + sk[1]) + (sk[2] + sk[3]), asked = (sq[0] + sq[1]) + (sq[2] + sq[3]);
#pragma unroll
      for (int step = kColumns; step < 32; step *= 2) {
        remembered += shuffle_xor(remembered, step);
        asked += shuffle_xor(asked, step);
      }
      const float decay = decays[t],
                  u = betas[t] * (vs[t][warp * kColumns + lane % kColumns] - decay * remembered);
      if (group == 0 && mine) out[(begin + t) * a.out_stride + column] = decay * asked + mixes[t] * u;
#pragma unroll
      for (int i = 0; i < kRows; ++i) S[i] = decay * S[i] + k[i] * u;
    }
  }
  if (s.dropped == 0) store();
}

void start_recurrence(Stream& stream, const DeltaRule& op, bool all) {
  if (op.sequences.empty()) return;
  auto a = arguments_of<DeltaArguments>(op);
  a.k_dim = op.k_dim;
  a.all = all;
  const dim3 grid(static_cast<unsigned>(op.sequences.size()), static_cast<unsigned>(op.v_heads),
                  static_cast<unsigned>(ceil_div(op.v_dim, kBlock)));
  auto start = [&](auto kernel) { launch(stream.queue(), kernel, grid, dim3(kThreads), 0, a); };
  if (op.k_dim <= 32) return start(delta_kernel<8>);
  if (op.k_dim <= 64) return start(delta_kernel<16>);
  if (op.k_dim <= 128) return start(delta_kernel<32>);
  start(delta_kernel<64>);
}

}  // namespace

void delta_rule(Stream& stream, const DeltaRule& op) { start_recurrence(stream, op, true); }
void delta_rule_short(Stream& stream, const DeltaRule& op) { start_recurrence(stream, op, false); }

}  // namespace atom::ops::gpu_kernels
