// The delta rule: heads of sequences dealt to the team, each in chunks of tokens; and its reference.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/delta_rows.h"

namespace atom::ops::cpu {
namespace {

constexpr double kNormEps = 1e-6;

// The gates of one token and value head.
struct Gates {
  double decay, beta;
};
Gates gates(const DeltaRule& op, int64_t t, int64_t h) {
  const double a = static_cast<double>(op.a.row<float>(t)[h]) + op.dt_bias.as<float>()[h];
  const double softplus = a > 20 ? a : std::log1p(std::exp(a));
  return {std::exp(-std::exp(static_cast<double>(op.a_log.as<float>()[h])) * softplus),
          1 / (1 + std::exp(-static_cast<double>(op.b.row<float>(t)[h])))};
}

// scale / sqrt(|x|² + eps).
double normaliser(const float* x, int64_t n, double scale) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  return scale / std::sqrt(squares + kNormEps);
}

// The rows of one sequence and value head, and where its parts lie in them.
struct HeadView {
  const float *q, *k, *v;  // of row t at q + t * stride
  float* out;
  float* state;
  int64_t stride, out_stride;

  HeadView(const DeltaRule& op, const RecurrentSequence& s, int64_t h) {
    const int64_t key_head = h / (op.v_heads / op.k_heads);
    const float* row = op.qkv.row<float>(s.first_row);
    q = row + key_head * op.k_dim;
    k = q + int64_t{op.k_heads} * op.k_dim;
    v = row + 2 * int64_t{op.k_heads} * op.k_dim + h * op.v_dim;
    out = op.out.row<float>(s.first_row) + h * op.v_dim;
    state = op.state.row<float>(s.slot) + h * op.k_dim * op.v_dim;
    stride = op.qkv.strides[0];
    out_stride = op.out.strides[0];
  }
};

void run_head(const DeltaRule& op, const RecurrentSequence& s, int64_t h, DeltaHeadKernel kernel) {
  const HeadView view(op, s, h);
  const int64_t n = op.k_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(n));
  const int64_t kept = s.rows - s.dropped, elements = n * op.v_dim;
  thread_local std::vector<float> scratch;
  const int64_t needed = 2 * kDeltaChunk * n + (s.dropped > 0 ? elements : 0);
  if (static_cast<int64_t>(scratch.size()) < needed) scratch.resize(needed);
  float *q = scratch.data(), *k = q + kDeltaChunk * n, *state = view.state;
  float decay[kDeltaChunk], beta[kDeltaChunk];
  for (int64_t begin = 0, tokens = 0; begin < s.rows; begin += tokens) {
    if (begin == kept) state = std::copy_n(view.state, elements, k + kDeltaChunk * n) - elements;
    tokens = std::min(kDeltaChunk, (begin < kept ? kept : s.rows) - begin);
    for (int64_t t = 0; t < tokens; ++t) {
      const Gates g = gates(op, s.first_row + begin + t, h);
      decay[t] = static_cast<float>(g.decay);
      beta[t] = static_cast<float>(g.beta);
      const float* q_row = view.q + (begin + t) * view.stride;
      const float* k_row = view.k + (begin + t) * view.stride;
      const float q_scale = static_cast<float>(normaliser(q_row, n, scale));
      const float k_scale = static_cast<float>(normaliser(k_row, n, 1));
      for (int64_t i = 0; i < n; ++i) q[t * n + i] = q_row[i] * q_scale;
      for (int64_t i = 0; i < n; ++i) k[t * n + i] = k_row[i] * k_scale;
    }
    kernel({q, k, decay, beta, view.v + begin * view.stride, view.out + begin * view.out_stride, state,
            tokens, n, op.v_dim, view.stride, view.out_stride});
  }
}

void run_head_ref(const DeltaRule& op, const RecurrentSequence& s, int64_t h) {
  const HeadView view(op, s, h);
  std::vector<double> state(view.state, view.state + int64_t{op.k_dim} * op.v_dim);
  const auto store = [&] {
    std::transform(state.begin(), state.end(), view.state, [](double x) { return static_cast<float>(x); });
  };
  for (int64_t t = 0; t < s.rows; ++t) {
    if (s.dropped > 0 && t == s.rows - s.dropped) store();
    const float *q = view.q + t * view.stride, *k = view.k + t * view.stride, *v = view.v + t * view.stride;
    const Gates g = gates(op, s.first_row + t, h);
    const double q_scale = normaliser(q, op.k_dim, 1 / std::sqrt(static_cast<double>(op.k_dim)));
    const double k_scale = normaliser(k, op.k_dim, 1);
    for (double& x : state) x *= g.decay;
    for (int64_t j = 0; j < op.v_dim; ++j) {
      double remembered = 0, out = 0;
      for (int64_t i = 0; i < op.k_dim; ++i) remembered += state[i * op.v_dim + j] * k[i] * k_scale;
      const double u = g.beta * (v[j] - remembered);
      for (int64_t i = 0; i < op.k_dim; ++i) {
        state[i * op.v_dim + j] += k[i] * k_scale * u;
        out += state[i * op.v_dim + j] * q[i] * q_scale;
      }
      view.out[t * view.out_stride + j] = static_cast<float>(out);
    }
  }
  if (s.dropped == 0) store();
}

template <class RunHead>
void for_each_head(Stream& stream, const DeltaRule& op, const RunHead& run_head) {
  const int64_t heads = op.v_heads, jobs = static_cast<int64_t>(op.sequences.size()) * heads;
  stream.pool().parallel_for(jobs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) run_head(op.sequences[job / heads], job % heads);
  });
}

}  // namespace

void delta_rule(Stream& stream, const DeltaRule& op, DeltaHeadKernel kernel) {
  for_each_head(stream, op, [&](const RecurrentSequence& s, int64_t h) { run_head(op, s, h, kernel); });
}

void delta_rule_ref(Stream& stream, const DeltaRule& op) {
  for_each_head(stream, op, [&](const RecurrentSequence& s, int64_t h) { run_head_ref(op, s, h); });
}

}  // namespace atom::ops::cpu
