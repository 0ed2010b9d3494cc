// Rotary angles: the product in float32 as the reference has it, cos and sin of that float in double. Once
// per step for all layers, so it need not be fast.
#include "ops/cpu/rope_angles.h"

#include <cmath>
#include <vector>

#include "ops/rope_frequencies.h"

namespace atom::ops::cpu {
namespace {

void angles_of_token(const ComputeRopeAngles& op, int64_t t, const float* inv_freq) {
  const auto position = static_cast<float>(op.positions[t]);
  float* cos = op.out.cos.row<float>(t);
  float* sin = op.out.sin.row<float>(t);
  for (size_t i = 0; i < op.inv_freq.size(); ++i) {
    const float product = position * inv_freq[i];
    const double angle = product;
    cos[i] = static_cast<float>(std::cos(angle)) * op.magnitude;
    sin[i] = static_cast<float>(std::sin(angle)) * op.magnitude;
  }
}

}  // namespace

void compute_rope_angles(Stream& stream, const ComputeRopeAngles& op) {
  const auto tokens = static_cast<int64_t>(op.positions.size());
  stream.pool().parallel_for(tokens, 16, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> table;  // of the last length that exceeded the original one
    int64_t table_length = 0;
    for (int64_t t = begin; t < end; ++t) {
      const float* inv_freq = op.inv_freq.data();
      if (!op.lengths.empty() && op.lengths[t] > op.original_length) {
        if (op.lengths[t] != table_length) {
          table.resize(op.inv_freq.size());
          table_length = op.lengths[t];
          dynamic_inv_freq(op.theta, op.factor, op.original_length, table_length,
                           static_cast<int32_t>(2 * table.size()), table.data());
        }
        inv_freq = table.data();
      }
      angles_of_token(op, t, inv_freq);
    }
  });
}

}  // namespace atom::ops::cpu
