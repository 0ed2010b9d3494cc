// The supported architectures: one line each.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/config_keys.h"
#include "nn/causal_lm.h"

namespace atom {

// Declares the model that the config's `architectures` names: after this the scope's tables are its manifest.
// Throws Error (invalid) for an unsupported architecture, with the list of supported ones, or a bad config.
std::unique_ptr<nn::Model> make_model(Scope s, const ConfigReader& config);

std::vector<std::string> supported_architectures();

}  // namespace atom
