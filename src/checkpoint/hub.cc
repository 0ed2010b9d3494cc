#include "checkpoint/hub.h"

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/text_util.h"
#include "checkpoint/hub_cache.h"
#include "checkpoint/hub_download.h"
#include "checkpoint/json_file.h"

namespace atom {
namespace fs = std::filesystem;
namespace {

std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

bool env_flag(const char* name) {
  std::string value = env(name).value_or("");
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::toupper(c); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

fs::path hub_home() {
  if (const auto home = env("HF_HOME")) return *home;
  if (const auto cache = env("XDG_CACHE_HOME")) return fs::path(*cache) / "huggingface";
  return fs::path(env("HOME").value_or(".")) / ".cache" / "huggingface";
}

// A token without the line end that files and variables often carry; empty when there is none.
std::optional<std::string> clean_token(std::string_view text, const std::string& source) {
  const std::string token(trimmed(text));
  if (token.empty()) return std::nullopt;
  for (const char c : token) {
    if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7F) {
      throw invalid("{}: the access token holds blanks or unprintable characters", source);
    }
  }
  return token;
}

std::optional<std::string> find_token() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const auto token = env(name)) return clean_token(*token, name);
  }
  const fs::path path = env("HF_TOKEN_PATH") ? fs::path(*env("HF_TOKEN_PATH")) : hub_home() / "token";
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  return clean_token(read_file(path, 65536), path.string());
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 96 && text.front() != '-' && text.front() != '.' &&
         text.find("--") == std::string_view::npos && text.find("..") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
         });
}

std::optional<fs::path> find_in_cache(const HubId& id, const fs::path& folder) {
  try {
    const HubCache cache(folder, id.repo);
    const auto commit = cache.commit_of(id.revision);
    return commit ? complete_model(cache.snapshot(*commit), id.filename) : std::nullopt;
  } catch (const fs::filesystem_error& error) {
    throw invalid("{}: {}", folder.string(), error.what());
  }
}

}  // namespace

HubOptions hub_options_from_environment() {
  HubOptions options;
  if (const auto endpoint = env("HF_ENDPOINT")) options.endpoint = *endpoint;
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  if (!options.endpoint.starts_with("http://") && !options.endpoint.starts_with("https://")) {
    throw invalid("HF_ENDPOINT: {} is not an http or https address", printable(options.endpoint));
  }
  options.cache = hub_home() / "hub";
  for (const char* name : {"HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"}) {
    if (const auto cache = env(name)) options.cache = *cache;
  }
  options.token = find_token();
  options.offline = env_flag("HF_HUB_OFFLINE");
  return options;
}

std::optional<HubId> parse_hub_id(std::string_view model) {
  HubId id;
  if (const size_t colon = model.find(':'); colon != std::string_view::npos) {
    id.filename = model.substr(colon + 1);
    if (!is_safe_repo_path(*id.filename) || !id.filename->ends_with(".gguf")) return std::nullopt;
    model = model.substr(0, colon);
  }
  if (const size_t at = model.find('@'); at != std::string_view::npos) {
    id.revision = model.substr(at + 1);
    if (!is_safe_repo_path(id.revision)) return std::nullopt;
    model = model.substr(0, at);
  }
  const size_t slash = model.find('/');
  if (slash == std::string_view::npos || !is_name(model.substr(0, slash)) ||
      !is_name(model.substr(slash + 1))) {
    return std::nullopt;
  }
  id.repo = model;
  return id;
}

fs::path resolve_model(const std::string& model, const HubOptions& options) {
  std::error_code error;
  if (fs::exists(model, error)) return model;
  const std::optional<HubId> id = parse_hub_id(model);
  if (!id) {
    throw invalid(
        "{}: no such folder or file, and not a Hugging Face id (org/name, org/name@revision, "
        "org/name:file.gguf)",
        printable(model));
  }
  if (const auto found = find_in_cache(*id, options.cache)) return *found;
  if (options.offline) {
    throw invalid("{}: no such folder, not complete in {}, and HF_HUB_OFFLINE forbids to download it", model,
                  options.cache.string());
  }
  return download_model(*id, options);
}

}  // namespace atom
