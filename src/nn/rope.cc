#include "nn/rope.h"

namespace atom::nn {
namespace {

ops::RopeKind rope_kind(RopeType type) {
  switch (type) {
    case RopeType::plain:
      return ops::RopeKind::plain;
    case RopeType::linear:
      return ops::RopeKind::linear;
    case RopeType::dynamic:
      return ops::RopeKind::dynamic;
    case RopeType::llama3:
      return ops::RopeKind::llama3;
    case RopeType::yarn:
      return ops::RopeKind::yarn;
  }
  CHECK(false, "rope type {}", static_cast<int>(type));
}

}  // namespace

ops::RopeParameters rope_parameters(const RopeConfig& c) {
  return {.kind = rope_kind(c.type),
          .rotary_dim = static_cast<int32_t>(c.rotary_dim),
          .theta = c.theta,
          .factor = c.factor,
          .original_max_position = c.original_max_position_embeddings,
          .low_freq_factor = c.low_freq_factor,
          .high_freq_factor = c.high_freq_factor,
          .beta_fast = c.beta_fast,
          .beta_slow = c.beta_slow,
          .truncate = c.truncate,
          .attention_factor = c.attention_factor,
          .mscale = c.mscale,
          .mscale_all_dim = c.mscale_all_dim,
          .freq_factors = c.freq_factors};
}

}  // namespace atom::nn
