// Config rules that dense models share: which layers slide, which activation.
#pragma once
#include <vector>

#include "checkpoint/config_keys.h"

namespace atom::nn {

// The attention window of every layer, 0 for full attention. `layer_types` decides where it is present, with
// `sliding_window` as the width; else layers from `first` on have `window` (0: none has).
std::vector<int64_t> layer_windows(const ConfigReader& config, int64_t layers, int64_t window,
                                   int64_t first = 0);

// Throws unless hidden_act is SiLU, the only activation of these blocks.
void require_silu(const ConfigReader& config);

}  // namespace atom::nn
