// JSON values that keep their key order, for configs, protocol messages and templates. Large files
// (tokenizer, tensor headers) are read with simdjson where they are used.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace atom {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 128;

// Parses a whole text. `name` (a file or field) opens the error message, which carries the byte offset.
// Nesting beyond kMaxJsonDepth is refused. Throws Error (invalid).
Json parse_json(std::string_view text, std::string_view name);

// Reads and parses a file of at most 64 MiB. Throws Error (invalid).
Json read_json_file(const std::filesystem::path& path);

}  // namespace atom
