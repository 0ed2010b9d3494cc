// The causal convolution: stripes of channels dealt to the team, each along its sequence; and its reference.
#include <algorithm>
#include <cmath>

#include "ops/cpu/delta_rows.h"

namespace atom::ops::cpu {
namespace {

constexpr int64_t kStripe = 256;  // channels

// Row `row` of one sequence, which is one of the state's when it is negative.
const float* input_row(const CausalConv& op, const RecurrentSequence& s, int64_t row) {
  if (row >= 0) return op.x.row<float>(s.first_row + row);
  return op.state.row<float>(s.slot) + (op.kernel - 1 + row) * op.out.dim(1);
}

// The state becomes the last kernel - 1 rows that are kept; a short step keeps some of the old ones, moved
// up.
void update_state(const CausalConv& op, const RecurrentSequence& s, int64_t channel, int64_t count) {
  const int64_t kept = s.rows - s.dropped;
  if (kept == 0) return;
  float* state = op.state.row<float>(s.slot);
  for (int64_t i = 0; i < op.kernel - 1; ++i) {
    const float* from = input_row(op, s, kept - (op.kernel - 1) + i) + channel;
    std::copy_n(from, count, state + i * op.out.dim(1) + channel);
  }
}

void run_stripe(const CausalConv& op, const RecurrentSequence& s, int64_t channel, int64_t count) {
  float taps[kMaxConvKernel][kStripe];
  const float* weight = op.weight.as<float>() + channel * op.kernel;
  for (int64_t c = 0; c < count; ++c) {
    for (int32_t j = 0; j < op.kernel; ++j) taps[j][c] = weight[c * op.kernel + j];
  }
  for (int64_t t = 0; t < s.rows; ++t) {
    float sum[kStripe] = {};
    for (int32_t j = 0; j < op.kernel; ++j) {
      const float* x = input_row(op, s, t - (op.kernel - 1) + j) + channel;
      for (int64_t c = 0; c < count; ++c) sum[c] += taps[j][c] * x[c];
    }
    float* out = op.out.row<float>(s.first_row + t) + channel;
    for (int64_t c = 0; c < count; ++c) out[c] = sum[c] / (1 + std::exp(-sum[c]));
  }
  update_state(op, s, channel, count);
}

}  // namespace

void causal_conv_rows(Stream& stream, const CausalConv& op) {
  const int64_t channels = op.out.dim(1), stripes = (channels + kStripe - 1) / kStripe;
  const int64_t jobs = static_cast<int64_t>(op.sequences.size()) * stripes;
  stream.pool().parallel_for(jobs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const int64_t channel = job % stripes * kStripe;
      run_stripe(op, op.sequences[job / stripes], channel, std::min(kStripe, channels - channel));
    }
  });
}

void causal_conv_ref(Stream&, const CausalConv& op) {
  for (const RecurrentSequence& s : op.sequences) {
    for (int64_t t = 0; t < s.rows; ++t) {
      for (int64_t c = 0; c < op.out.dim(1); ++c) {
        double sum = 0;
        for (int32_t j = 0; j < op.kernel; ++j) {
          sum += static_cast<double>(op.weight.as<float>()[c * op.kernel + j]) *
                 input_row(op, s, t - (op.kernel - 1) + j)[c];
        }
        op.out.row<float>(s.first_row + t)[c] = static_cast<float>(sum / (1 + std::exp(-sum)));
      }
    }
    update_state(op, s, 0, op.out.dim(1));
  }
}

}  // namespace atom::ops::cpu
