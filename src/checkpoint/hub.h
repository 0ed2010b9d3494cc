// What --model means: a folder, a .gguf file, or a Hugging Face id found in the local cache or downloaded.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace atom {

// Bytes of all files of one download; `total` counts what the server announced. Called from one thread at a
// time, at most about ten times a second.
struct HubProgress {
  int64_t bytes = 0;
  int64_t total = 0;
  int files_done = 0;
  int files = 0;
};

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::filesystem::path cache;       // the folder of models--org--name
  std::optional<std::string> token;  // sent to the endpoint's host only
  bool offline = false;
  int parallel = 4;
  int retries = 5;
  int64_t retry_wait_us = 500'000;  // before the first retry; doubles up to 8 s
  std::function<void(const HubProgress&)> progress;
};

// HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_OFFLINE.
HubOptions hub_options_from_environment();

struct HubId {
  std::string repo;                     // "org/name"
  std::string revision = "main";        // after '@'
  std::optional<std::string> filename;  // after ':', picks one .gguf
};
// "org/name", "org/name@revision", "org/name:file.gguf". Empty when `model` has no such form.
std::optional<HubId> parse_hub_id(std::string_view model);

// The folder or .gguf file to open. An existing path is returned as it is; an id is looked up in the cache
// (complete snapshots only) and else downloaded, resuming what an earlier run left. Safe with other processes
// on the same cache. Throws Error: invalid for what the user can fix (unknown id, no access, offline), failed
// for a network that stays broken.
std::filesystem::path resolve_model(const std::string& model, const HubOptions& options);

}  // namespace atom
