// Rotary frequencies of each recipe, with the reference's float32 roundings.
#include "ops/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace atom::ops {
namespace {

// theta^(2i/dim), rounded once from the float32 exponent.
float position_period(double theta, int32_t i, int32_t dim) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
  return static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), exponent));
}

// Long waves are divided by the factor, short ones kept, those between blended.
void llama3(const RopeParameters& p, std::vector<float>& inv_freq) {
  const auto length = static_cast<double>(p.original_max_position);
  const auto longest = static_cast<float>(length / p.low_freq_factor);
  const auto shortest = static_cast<float>(length / p.high_freq_factor);
  const auto factor = static_cast<float>(p.factor);
  for (float& f : inv_freq) {
    const float wave = static_cast<float>(2 * std::numbers::pi) / f;
    if (wave > longest) {
      f /= factor;
    } else if (wave >= shortest) {
      const float smooth = (static_cast<float>(length) / wave - static_cast<float>(p.low_freq_factor)) /
                           static_cast<float>(p.high_freq_factor - p.low_freq_factor);
      f = (1 - smooth) * f / factor + smooth * f;
    }
  }
}

// The pair (as a real number) that turns `rotations` times over the original context.
double correction_pair(const RopeParameters& p, double rotations) {
  return p.rotary_dim *
         std::log(static_cast<double>(p.original_max_position) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(p.theta));
}

// Fast pairs are kept, slow ones divided by the factor, with a linear ramp between two pairs.
void yarn(const RopeParameters& p, std::vector<float>& inv_freq) {
  double low = correction_pair(p, p.beta_fast);
  double high = correction_pair(p, p.beta_slow);
  if (p.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(p.rotary_dim - 1));
  if (low == high) high += 0.001;
  for (int32_t i = 0; i < p.rotary_dim / 2; ++i) {
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float keep = 1 - std::clamp(ramp, 0.0f, 1.0f);
    const float period = position_period(p.theta, i, p.rotary_dim);
    const float slow = 1 / (static_cast<float>(p.factor) * period), fast = 1 / period;
    inv_freq[i] = slow * (1 - keep) + fast * keep;
  }
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

}  // namespace

void plain_inv_freq(double theta, int32_t rotary_dim, float* out) {
  for (int32_t i = 0; i < rotary_dim / 2; ++i) out[i] = 1 / position_period(theta, i, rotary_dim);
}

void dynamic_inv_freq(double theta, double factor, int64_t original_max_position, int64_t length,
                      int32_t rotary_dim, float* out) {
  if (length > original_max_position) {
    const double ratio = static_cast<double>(length) / static_cast<double>(original_max_position);
    const double dim = rotary_dim;
    theta *= std::pow(factor * ratio - (factor - 1), dim / (dim - 2));
  }
  plain_inv_freq(theta, rotary_dim, out);
}

std::vector<float> rope_inv_freq(const RopeParameters& p) {
  CHECK(p.rotary_dim >= 2 && p.rotary_dim % 2 == 0 && p.theta > 0, "rotary_dim {} theta {}", p.rotary_dim,
        p.theta);
  const bool needs_length = p.kind == RopeKind::llama3 || p.kind == RopeKind::yarn;
  CHECK(!needs_length || p.original_max_position > 0, "original_max_position {}", p.original_max_position);
  CHECK(p.kind == RopeKind::plain || p.factor > 0, "factor {}", p.factor);
  std::vector<float> inv_freq(p.rotary_dim / 2);
  plain_inv_freq(p.theta, p.rotary_dim, inv_freq.data());
  switch (p.kind) {
    case RopeKind::plain:
    case RopeKind::dynamic:
      break;
    case RopeKind::linear:
      for (float& f : inv_freq) f /= static_cast<float>(p.factor);
      break;
    case RopeKind::llama3:
      llama3(p, inv_freq);
      break;
    case RopeKind::yarn:
      yarn(p, inv_freq);
      break;
  }
  CHECK(p.freq_factors.empty() || p.freq_factors.size() == inv_freq.size(), "{} factors",
        p.freq_factors.size());
  for (size_t i = 0; i < p.freq_factors.size(); ++i) inv_freq[i] /= static_cast<float>(p.freq_factors[i]);
  return inv_freq;
}

float rope_magnitude(const RopeParameters& p) {
  if (p.kind != RopeKind::yarn) return 1;
  if (p.attention_factor) return static_cast<float>(*p.attention_factor);
  // Zero counts as absent, as in the reference.
  const double mscale = p.mscale.value_or(0), all_dim = p.mscale_all_dim.value_or(0);
  if (mscale != 0 && all_dim != 0) {
    return static_cast<float>(yarn_scale(p.factor, mscale) / yarn_scale(p.factor, all_dim));
  }
  return static_cast<float>(yarn_scale(p.factor, 1));
}

}  // namespace atom::ops
