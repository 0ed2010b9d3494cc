// Which safetensors files of a model folder hold its tensors, and what the index says about each tensor.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

namespace atom {

inline constexpr const char* kIndexFileName = "model.safetensors.index.json";
inline constexpr int64_t kMaxShardIndexBytes = int64_t{256} << 20;

struct ShardList {
  std::vector<std::string> files;  // names inside the folder, sorted; all exist
  bool indexed = false;
  std::unordered_map<std::string, int> file_of;  // with an index: tensor -> position in `files`
};

// Throws Error (invalid) when the index is bad or names a missing file, and when the folder has no
// safetensors (with the remedy for what it has instead).
ShardList list_shards(const std::filesystem::path& folder);

// The same from an index alone: no file needs to exist. Unsafe file names are an error.
ShardList parse_shard_index(const std::string& text, const std::string& index_name);

}  // namespace atom
