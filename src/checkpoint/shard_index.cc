#include "checkpoint/shard_index.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/json_file.h"

namespace atom {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxShards = 10'000;
constexpr size_t kMaxDepth = 64;

bool is_safe_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// Files of the folder that end in `suffix`, sorted.
std::vector<std::string> names_ending_in(const fs::path& folder, std::string_view suffix) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (name.ends_with(suffix)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Throws, naming up to three missing files.
void require_files(const fs::path& folder, const std::vector<std::string>& names, std::string_view source) {
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!fs::exists(folder / name)) missing.push_back(name);
  }
  if (missing.empty()) return;
  const size_t count = missing.size();
  missing.resize(std::min<size_t>(count, 3));
  throw invalid("{}: {} of {} files named by {} are missing: {}{}; complete the download", folder.string(),
                count, names.size(), source, fmt::join(missing, ", "), count > 3 ? ", ..." : "");
}

// "model-00002-of-00003.safetensors" names a set of three: all must be there.
void require_whole_set(const fs::path& folder, const std::vector<std::string>& names) {
  constexpr size_t kDigits = 5, kTail = std::string_view("-00002-of-00003.safetensors").size();
  for (const std::string& name : names) {
    if (name.size() <= kTail) continue;
    const std::string tail = name.substr(name.size() - kTail);
    const std::string index = tail.substr(1, kDigits), total = tail.substr(10, kDigits);
    const bool digits = (index + total).find_first_not_of("0123456789") == std::string::npos;
    if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !digits) continue;
    const std::string stem = name.substr(0, name.size() - kTail);
    std::vector<std::string> set;
    for (int i = 1; i <= std::min<int>(std::stoi(total), kMaxShards); ++i) {
      set.push_back(fmt::format("{}-{:05}-of-{}.safetensors", stem, i, total));
    }
    require_files(folder, set, "the numbering of " + name);
  }
}

[[noreturn]] void refuse_folder(const fs::path& folder) {
  const std::string where = folder.string();
  if (const auto names = names_ending_in(folder, ".gguf"); !names.empty()) {
    throw invalid("{}: no safetensors files; to use the GGUF file give its path: {}", where,
                  (folder / names.front()).string());
  }
  if (fs::exists(folder / "params.json")) {
    throw invalid(
        "{}: this folder has Mistral's own layout (params.json); use the Hugging Face layout with "
        "config.json "
        "and model.safetensors",
        where);
  }
  for (const char* suffix : {".bin", ".pt", ".pth", ".ckpt"}) {
    if (const auto names = names_ending_in(folder, suffix); !names.empty()) {
      throw invalid(
          "{}: safetensors required: {} is a pickle file, which is never opened; convert it or use a "
          "revision "
          "with safetensors",
          where, names.front());
    }
  }
  throw invalid("{}: safetensors required: there are no *.safetensors files", where);
}

}  // namespace

ShardList parse_shard_index(const std::string& text, const std::string& index_name) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::dom::object map;
  if (parser.allocate(text.size(), kMaxDepth) != simdjson::SUCCESS) {
    throw failed("{}: no memory to parse it", index_name);
  }
  if (const auto error = parser.parse(text.data(), text.size()).get(root)) {
    throw invalid("{}: not valid JSON ({})", index_name, simdjson::error_message(error));
  }
  if (root["weight_map"].get(map)) throw invalid("{}: no object named weight_map", index_name);

  ShardList list;
  list.indexed = true;
  std::map<std::string, int, std::less<>> numbers;  // file name -> position among distinct names
  std::vector<std::pair<std::string_view, std::string_view>> entries;
  for (const auto [tensor, value] : map) {
    std::string_view file;
    if (value.get(file)) throw invalid("{}: {}: not a file name", index_name, printable(tensor));
    if (!is_safe_name(file) || !file.ends_with(".safetensors")) {
      throw invalid("{}: {}: unsafe file name {}; only *.safetensors beside the index are allowed",
                    index_name, printable(tensor), printable(file));
    }
    numbers.emplace(file, 0);
    entries.emplace_back(tensor, file);
  }
  if (numbers.size() > kMaxShards) throw invalid("{}: {} files are too many", index_name, numbers.size());
  for (auto& [file, number] : numbers) {
    number = static_cast<int>(list.files.size());
    list.files.push_back(file);
  }
  list.file_of.reserve(entries.size());
  for (const auto& [tensor, file] : entries) {
    if (!list.file_of.emplace(tensor, numbers.find(file)->second).second) {
      throw invalid("{}: tensor {} is listed twice", index_name, printable(tensor));
    }
  }
  return list;
}

ShardList list_shards(const fs::path& folder) {
  if (const fs::path index = folder / kIndexFileName; fs::exists(index)) {
    ShardList list = parse_shard_index(read_checkpoint_text(index, kMaxShardIndexBytes), index.string());
    require_files(folder, list.files, kIndexFileName);
    return list;
  }
  ShardList list;
  if (fs::exists(folder / "model.safetensors")) {
    list.files = {"model.safetensors"};
    return list;
  }
  list.files = names_ending_in(folder, ".safetensors");
  std::erase_if(list.files, [](const std::string& name) {
    return name.starts_with("consolidated") || name.starts_with("adapter") || name.starts_with('.');
  });
  if (list.files.empty()) refuse_folder(folder);
  if (list.files.size() > kMaxShards) throw invalid("{}: too many files", folder.string());
  require_whole_set(folder, list.files);
  return list;
}

}  // namespace atom
