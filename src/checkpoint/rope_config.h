// RopeConfig: every spelling of a model's rotary embedding settings read into one struct.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "checkpoint/config_keys.h"

namespace atom {

enum class RopeType : uint8_t { plain, linear, dynamic, llama3, yarn };
const char* rope_type_name(RopeType type);

struct RopeConfig {
  RopeType type = RopeType::plain;
  double theta = 0;
  double partial_rotary_factor = 1;
  int64_t rotary_dim = 0;  // lanes that rotate: even, at most the head dim
  // linear, dynamic, llama3, yarn
  double factor = 1;
  int64_t original_max_position_embeddings = 0;  // 0 when the type does not need it
  // llama3
  double low_freq_factor = 1, high_freq_factor = 4;
  // yarn
  double beta_fast = 32, beta_slow = 1;
  std::optional<double> mscale, mscale_all_dim, attention_factor;
  bool truncate = true;  // ramp bounds are rounded to whole dims
  // multimodal position sections, in frequencies; empty for text models
  std::vector<int64_t> mrope_section;
  bool mrope_interleaved = false;
  // GGUF files only: inverse frequency i is divided by freq_factors[i]; empty or rotary_dim / 2 long
  std::vector<double> freq_factors;

  bool operator==(const RopeConfig&) const = default;
};

// What the architecture's own config class assumes for an absent key; no theta means the file must say it.
struct RopeDefaults {
  std::optional<double> theta;
  double partial_rotary_factor = 1;
};

// Reads rope_theta, rope_scaling, rope_parameters, partial_rotary_factor and rotary_dim in all their
// spellings; spellings that disagree are an error. `head_dim` is the width rope works on (qk_rope_head_dim
// for latent attention). `layer_type` picks from rope_parameters keyed by layer type ("full_attention").
RopeConfig parse_rope(const ConfigReader& config, int64_t head_dim, const RopeDefaults& defaults = {},
                      std::string_view layer_type = {});

}  // namespace atom
