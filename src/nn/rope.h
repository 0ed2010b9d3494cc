// From a config's rope section to the recipe of ops.
#pragma once
#include "checkpoint/rope_config.h"
#include "ops/rope_frequencies.h"

namespace atom::nn {

ops::RopeParameters rope_parameters(const RopeConfig& config);

}  // namespace atom::nn
