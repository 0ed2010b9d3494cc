#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/dequant.h"
#include "ops/cpu/linear_rows.h"
#include "ops/cpu/moe_cpu.h"

namespace atom::ops {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// out = softmax(x); may be in place.
void softmax(const float* x, float* out, int64_t n) {
  const float max = *std::max_element(x, x + n);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += out[i] = std::exp(x[i] - max);
  for (int64_t i = 0; i < n; ++i) out[i] /= sum;
}

// The index of the largest value that is not in `taken`; the lowest of equal ones, and always a valid one.
int32_t best_of(const float* values, int64_t n, const int32_t* taken, int64_t count) {
  int32_t best = -1;
  for (int32_t i = 0; i < n; ++i) {
    if (best >= 0 && !(values[i] > values[best])) continue;
    if (std::find(taken, taken + count, i) == taken + count) best = i;
  }
  return best;
}

// Leaves only the best groups' choices; `scores` and `chosen` are scratch of `groups` entries.
void mask_groups(const RouteExperts& op, float* choice, int64_t experts, float* scores, int32_t* chosen) {
  const int64_t size = experts / op.groups;
  for (int32_t g = 0; g < op.groups; ++g) {
    float first = kMasked, second = kMasked;
    for (int64_t i = g * size; i < (g + 1) * size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    scores[g] = size > 1 ? first + second : first;
  }
  for (int32_t n = 0; n < op.top_groups; ++n) chosen[n] = best_of(scores, op.groups, chosen, n);
  for (int32_t g = 0; g < op.groups; ++g) {
    if (std::find(chosen, chosen + op.top_groups, g) == chosen + op.top_groups) {
      std::fill_n(choice + g * size, size, kMasked);
    }
  }
}

void route(const RouteExperts& op, int64_t token) {
  const int64_t experts = op.logits.dim(1), k = op.ids.dim(1);
  const float* logits = op.logits.row<float>(token);
  auto* score = reinterpret_cast<float*>(thread_scratch(kKernelScratch, 4 * experts * 4));
  float* choice = score + experts;
  switch (op.score) {
    case RouterScore::softmax:
      softmax(logits, score, experts);
      break;
    case RouterScore::softmax_chosen:
      std::copy_n(logits, experts, score);
      break;
    case RouterScore::sigmoid:
      for (int64_t i = 0; i < experts; ++i) score[i] = sigmoid(logits[i]);
      break;
  }
  for (int64_t i = 0; i < experts; ++i) {
    choice[i] = score[i] + (op.correction ? op.correction.as<float>()[i] : 0);
  }
  int32_t* ids = op.ids.row<int32_t>(token);
  if (op.groups > op.top_groups) {
    auto* chosen = reinterpret_cast<int32_t*>(choice + experts);
    mask_groups(op, choice, experts, choice + 2 * experts, chosen);
  }
  for (int64_t n = 0; n < k; ++n) ids[n] = best_of(choice, experts, ids, n);

  float* weights = op.weights.row<float>(token);
  for (int64_t n = 0; n < k; ++n) weights[n] = score[ids[n]];
  if (op.score == RouterScore::softmax_chosen) softmax(weights, weights, k);
  if (op.renormalize) {
    float sum = op.score == RouterScore::sigmoid ? 1e-20f : 0;
    for (int64_t n = 0; n < k; ++n) sum += weights[n];
    for (int64_t n = 0; n < k; ++n) weights[n] /= sum;
  }
  for (int64_t n = 0; n < k; ++n) weights[n] *= op.scale;
}

// out[r] = w[r] · x + bias[r].
void multiply(const Weight& w, const float* x, const Tensor& bias, float* out) {
  std::vector<float> row(static_cast<size_t>(w.cols));
  int64_t r = 0;
  for (const WeightPart& part : w.parts) {
    for (int64_t i = 0; i < part.data.dim(0); ++i, ++r) {
      dequantize_row(part, i, row.data());
      double sum = bias ? bias.as<float>()[r] : 0;
      for (int64_t c = 0; c < w.cols; ++c) sum += static_cast<double>(row[c]) * x[c];
      out[r] = static_cast<float>(sum);
    }
  }
}

}  // namespace

void route_experts_ref(Stream& stream, const RouteExperts& op) {
  stream.pool().parallel_for(op.ids.dim(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) route(op, t);
  });
}

void sigmoid_scale_ref(Stream& stream, const SigmoidScale& op) {
  stream.pool().parallel_for(op.x.dim(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float scale = sigmoid(*op.logits.row<float>(t));
      float* x = op.x.row<float>(t);
      for (int64_t i = 0; i < op.x.dim(1); ++i) x[i] *= scale;
    }
  });
}

void moe_experts_ref(Stream& stream, const MoeExperts& op) {
  const int64_t hidden = op.x.dim(1);
  stream.pool().parallel_for(op.x.dim(0), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> y(static_cast<size_t>(hidden));
    for (int64_t t = begin; t < end; ++t) {
      std::vector<double> sum(static_cast<size_t>(hidden));
      for (int64_t n = 0; n < op.ids.dim(1); ++n) {
        const int64_t e = op.ids.row<int32_t>(t)[n] - op.first_expert;
        if (e < 0 || e >= static_cast<int64_t>(op.down.size())) continue;
        const int64_t inter = op.down[e].cols;
        std::vector<float> h(static_cast<size_t>(2 * inter));
        multiply(op.gate_up[e], op.x.row<float>(t), op.gate_up_bias.empty() ? Tensor{} : op.gate_up_bias[e],
                 h.data());
        for (int64_t i = 0; i < inter; ++i) {
          float g = h[i], u = h[inter + i];
          if (op.activation == ExpertActivation::silu) {
            h[i] = g * sigmoid(g) * u;
          } else {
            g = std::min(g, op.limit);
            u = std::clamp(u, -op.limit, op.limit);
            h[i] = g * sigmoid(op.alpha * g) * (u + 1);
          }
        }
        multiply(op.down[e], h.data(), op.down_bias.empty() ? Tensor{} : op.down_bias[e], y.data());
        const double weight = op.weights.row<float>(t)[n];
        for (int64_t i = 0; i < hidden; ++i) sum[i] += weight * y[i];
      }
      float* out = op.out.row<float>(t);
      for (int64_t i = 0; i < hidden; ++i) out[i] = static_cast<float>(sum[i] + (op.accumulate ? out[i] : 0));
    }
  });
}

}  // namespace atom::ops
