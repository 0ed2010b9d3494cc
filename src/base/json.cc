#include "base/json.h"

#include "base/error.h"
#include "base/file.h"

namespace atom {

Json parse_json(std::string_view text, std::string_view name) {
  auto limit_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxJsonDepth) throw invalid("{}: JSON is nested deeper than {} levels", name, kMaxJsonDepth);
    return true;
  };
  try {
    return Json::parse(text, limit_depth);
  } catch (const nlohmann::json::parse_error& e) {
    // The library's message repeats its own prefix; the useful part follows the last "] ".
    std::string_view what = e.what();
    if (const size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
    throw invalid("{}: not valid JSON at byte {}: {}", name, e.byte, what);
  } catch (const nlohmann::json::exception& e) {  // a number beyond double, for example
    throw invalid("{}: not valid JSON: {}", name, e.what());
  }
}

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path, 64 << 20), path.string());
}

}  // namespace atom
