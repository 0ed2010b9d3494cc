// Reading of small text and JSON files of a checkpoint, with the remedy for a Git LFS pointer in their place.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace atom {

inline constexpr int64_t kMaxTextFileBytes = int64_t{64} << 20;

// The whole file; a Git LFS pointer is an error (invalid).
std::string read_checkpoint_text(const std::filesystem::path& path, int64_t max_bytes = kMaxTextFileBytes);

// The file as a JSON object.
Json read_checkpoint_json(const std::filesystem::path& path);
// Null when there is no such file.
Json read_checkpoint_json_if(const std::filesystem::path& path);

// A name from a file, fit for one line of an error message: short, no control characters, valid UTF-8.
std::string printable(std::string_view name);

}  // namespace atom
