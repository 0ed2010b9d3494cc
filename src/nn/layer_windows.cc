#include "nn/layer_windows.h"

#include <fmt/core.h>

namespace atom::nn {

std::vector<int64_t> layer_windows(const ConfigReader& config, int64_t layers, int64_t window,
                                   int64_t first) {
  const std::vector<std::string> types = config.texts("layer_types");
  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  if (types.empty()) {
    for (int64_t i = first; i < layers; ++i) windows[i] = window;
    return windows;
  }
  if (static_cast<int64_t>(types.size()) != layers) {
    throw config.error("layer_types", fmt::format("{} entries for {} layers", types.size(), layers));
  }
  // A config may switch its window off and still list the layers it would apply to.
  const bool off = config.has("use_sliding_window") && !config.boolean("use_sliding_window");
  for (int64_t i = 0; i < layers; ++i) {
    if (types[i] == "full_attention" || off) continue;
    if (types[i] != "sliding_attention") {
      throw config.error("layer_types",
                         fmt::format("\"{}\" in layer {}: this architecture has full_attention and "
                                     "sliding_attention layers",
                                     types[i], i));
    }
    windows[i] = config.integer("sliding_window", 1, kMaxWindow);
  }
  return windows;
}

void require_silu(const ConfigReader& config) {
  const std::string act = config.text_or("hidden_act", "silu");
  if (act != "silu" && act != "swish") {
    throw config.error("hidden_act",
                       fmt::format("\"{}\" is not supported; this architecture uses silu", act));
  }
}

}  // namespace atom::nn
