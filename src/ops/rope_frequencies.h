// Rotary frequencies of the recipes that checkpoints ask for ("rope_parameters" of a config).
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace atom::ops {

enum class RopeKind : uint8_t { plain, linear, dynamic, llama3, yarn };

struct RopeParameters {
  RopeKind kind = RopeKind::plain;
  int32_t rotary_dim = 0;  // even, at least 2
  double theta = 10000;
  double factor = 1;                  // all but plain
  int64_t original_max_position = 0;  // dynamic, llama3, yarn
  double low_freq_factor = 1;         // llama3
  double high_freq_factor = 4;        // llama3
  double beta_fast = 32;              // yarn, as are all below
  double beta_slow = 1;
  bool truncate = true;  // whole pairs as the ends of the correction range
  std::optional<double> attention_factor, mscale, mscale_all_dim;
  // Frequency i is divided by freq_factors[i] (files that store factors instead of a recipe); empty: none.
  std::vector<double> freq_factors;

  bool operator==(const RopeParameters&) const = default;
};

// [rotary_dim / 2], in float32 as the reference computes them. Dynamic gives the table of short contexts;
// longer ones are ComputeRopeAngles' work.
std::vector<float> rope_inv_freq(const RopeParameters& parameters);

// The table of plain rope, and of dynamic rope for a context of `length` tokens; out is [rotary_dim / 2].
void plain_inv_freq(double theta, int32_t rotary_dim, float* out);
void dynamic_inv_freq(double theta, double factor, int64_t original_max_position, int64_t length,
                      int32_t rotary_dim, float* out);

// What cos and sin are multiplied by: 1 but for yarn.
float rope_magnitude(const RopeParameters& parameters);

}  // namespace atom::ops
