// Download of one repository into the Hugging Face cache.
#pragma once
#include <filesystem>

#include "checkpoint/hub.h"

namespace atom {

// Fetches what a model needs (config, tokenizer, templates, safetensors; or one .gguf) and returns the folder
// or file to open. Files already in the cache are kept, partial ones are resumed.
std::filesystem::path download_model(const HubId& id, const HubOptions& options);

}  // namespace atom
