// Gates row by row, rows dealt to the team.
#include "ops/cpu/gate_rows.h"

#include <algorithm>
#include <cmath>

namespace atom::ops::cpu {
namespace {

// At least 4 K exponentials for one member, so that waking the team pays.
int64_t grain(int64_t n) { return std::max<int64_t>(1, 4096 / n); }

}  // namespace

void gated_rms_norm_ref(Stream& stream, const GatedRmsNorm& op) {
  const int64_t dim = op.weight.dim(0), heads = op.x.dim(1) / dim;
  const float* weight = op.weight.as<float>();
  stream.pool().parallel_for(op.x.dim(0), grain(op.x.dim(1)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        float* x = op.x.row<float>(t) + h * dim;
        const float* gate = op.gate.row<float>(t) + h * dim;
        double squares = 0;
        for (int64_t i = 0; i < dim; ++i) squares += static_cast<double>(x[i]) * x[i];
        const float scale = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(dim) + op.eps));
        for (int64_t i = 0; i < dim; ++i)
          x[i] = x[i] * scale * weight[i] * gate[i] / (1 + std::exp(-gate[i]));
      }
    }
  });
}

void sigmoid_gate_ref(Stream& stream, const SigmoidGate& op) {
  const int64_t n = op.x.dim(1);
  stream.pool().parallel_for(op.x.dim(0), grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* x = op.x.row<float>(t);
      const float* gate = op.gate.row<float>(t);
      for (int64_t i = 0; i < n; ++i) x[i] /= 1 + std::exp(-gate[i]);
    }
  });
}

}  // namespace atom::ops::cpu
