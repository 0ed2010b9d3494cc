#include "checkpoint/hub_select.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text_util.h"
#include "checkpoint/shard_index.h"

namespace atom {
namespace {

bool is_small_file(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "config.json",        "generation_config.json", "hf_quant_config.json",
      "tokenizer.json",     "tokenizer_config.json",  "special_tokens_map.json",
      "chat_template.json", "chat_template.jinja",    kIndexFileName};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         (name.starts_with("additional_chat_templates/") && name.ends_with(".jinja"));
}

std::vector<std::string> safetensors_in_root(const FileNames& names) {
  std::vector<std::string> files;
  for (const std::string& name : names) {
    const bool skipped = name.starts_with("consolidated") || name.starts_with("adapter");
    if (name.ends_with(".safetensors") && name.find('/') == std::string::npos && !skipped) {
      files.push_back(name);
    }
  }
  return files;
}

std::vector<std::string> gguf_files(const FileNames& names) {
  std::vector<std::string> files;
  for (const std::string& name : names) {
    if (name.ends_with(".gguf")) files.push_back(name);
  }
  return files;
}

std::string only_gguf(const HubId& id, const FileNames& names) {
  std::vector<std::string> files = gguf_files(names);
  if (files.size() == 1) return files[0];
  if (files.empty()) {
    throw invalid("{}: safetensors required: the repository has neither safetensors nor GGUF files", id.repo);
  }
  const size_t count = files.size();
  files.resize(std::min<size_t>(count, 12));
  throw invalid("{}: {} GGUF files; choose one as {}:FILE from {}{}", id.repo, count, id.repo,
                fmt::join(files, ", "), count > files.size() ? ", ..." : "");
}

}  // namespace

std::vector<std::string> select_small_files(const HubId& id, const FileNames& names) {
  std::vector<std::string> files;
  if (id.filename) return files;
  for (const std::string& name : names) {
    if (is_small_file(name)) files.push_back(name);
  }
  return files;
}

std::vector<std::string> select_weights(const HubId& id, const FileNames& names,
                                        const std::optional<std::string>& index) {
  if (id.filename) {
    if (names.contains(*id.filename)) return {*id.filename};
    throw invalid("{}: there is no file {}{}", id.repo, *id.filename,
                  did_you_mean(*id.filename, gguf_files(names)));
  }
  if (index) {
    std::vector<std::string> files =
        parse_shard_index(*index, fmt::format("{}: {}", id.repo, kIndexFileName)).files;
    for (const std::string& file : files) {
      if (names.contains(file)) continue;
      throw invalid("{}: {} names {}, which is not in the repository", id.repo, kIndexFileName, file);
    }
    return files;
  }
  if (names.contains("model.safetensors")) return {"model.safetensors"};
  if (auto files = safetensors_in_root(names); !files.empty()) return files;
  return {only_gguf(id, names)};
}

}  // namespace atom
