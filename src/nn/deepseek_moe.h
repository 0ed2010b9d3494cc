// Experts in the config keys of DeepSeek-V3, which GLM took over: sigmoid scores with a correction bias,
// groups, shared experts, dense layers first.
#pragma once
#include <vector>

#include "checkpoint/config_keys.h"
#include "nn/moe.h"

namespace atom::nn {

// Which layers have experts: mlp_layer_types, else those from first_k_dense_replace on that are a multiple of
// moe_layer_freq.
std::vector<bool> expert_layers(const ConfigReader& config, int64_t layers);

MoeConfig read_deepseek_moe(const ConfigReader& config);

}  // namespace atom::nn
