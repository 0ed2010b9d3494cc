// Which files of a repository a model needs. Pure functions of the list of names.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/hub.h"

namespace atom {

using FileNames = std::set<std::string, std::less<>>;

// Config, tokenizer, templates and the shard index; none when a .gguf file is asked for by name.
std::vector<std::string> select_small_files(const HubId& id, const FileNames& names);

// The safetensors that `index` (text of the shard index, if there is one) or the names tell, or one .gguf.
// Throws Error (invalid) when there are no usable weights or the choice is the user's.
std::vector<std::string> select_weights(const HubId& id, const FileNames& names,
                                        const std::optional<std::string>& index);

}  // namespace atom
