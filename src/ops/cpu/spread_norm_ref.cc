#include "ops/cpu/spread_norm_ref.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "comm/communicator.h"

namespace atom::ops::cpu {

void spread_rms_norm(Stream& stream, const SpreadRmsNorm& op) {
  const int64_t tokens = op.x.dim(0), n = op.x.dim(1);
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n));
  thread_local std::vector<float> squares;  // of each token's lanes
  squares.resize(static_cast<size_t>(tokens));
  float* sums = squares.data();
  stream.pool().parallel_for(tokens, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = op.x.row<float>(t);
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
      sums[t] = static_cast<float>(sum / op.copies);
    }
  });
  if (op.reduce != nullptr && op.reduce->size() > 1) {
    op.reduce->all_reduce(stream, make_tensor(sums, DType::f32, {tokens, 1}));
  }
  const float* weight = op.weight.as<float>();
  stream.pool().parallel_for(tokens, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* x = op.x.row<float>(t);
      const double scale =
          1 / std::sqrt(static_cast<double>(sums[t]) / static_cast<double>(op.total) + op.eps);
      for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] * scale * weight[i]);
    }
  });
}

}  // namespace atom::ops::cpu
