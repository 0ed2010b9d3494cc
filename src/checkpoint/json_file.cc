#include "checkpoint/json_file.h"

#include "base/error.h"
#include "base/file.h"
#include "base/text_util.h"

namespace atom {

std::string read_checkpoint_text(const std::filesystem::path& path, int64_t max_bytes) {
  std::string text = read_file(path, max_bytes);
  if (text.starts_with("version https://git-lfs")) {
    throw invalid("{}: a Git LFS pointer, not the file itself: run `git lfs pull` or download the file",
                  path.string());
  }
  return text;
}

Json read_checkpoint_json(const std::filesystem::path& path) {
  Json json = parse_json(read_checkpoint_text(path), path.string());
  if (!json.is_object()) throw invalid("{}: not a JSON object", path.string());
  return json;
}

Json read_checkpoint_json_if(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? read_checkpoint_json(path) : Json();
}

std::string printable(std::string_view name) {
  constexpr size_t kMax = 200;
  std::string text;
  const bool ascii_only = !is_valid_utf8(name);
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (text.size() >= kMax && (byte & 0xC0) != 0x80) return text + "...";
    text += byte < 0x20 || byte == 0x7F || (ascii_only && byte >= 0x80) ? '?' : c;
  }
  return text;
}

}  // namespace atom
