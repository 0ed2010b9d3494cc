#include "checkpoint/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/text_util.h"
#include "checkpoint/shard_index.h"

namespace atom {
namespace fs = std::filesystem;
namespace {

std::string folder_name(std::string_view repo) {
  std::string name = "models--";
  for (const char c : repo) name += c == '/' ? std::string("--") : std::string(1, c);
  return name;
}

// A name beside `path` that no other process or thread uses.
fs::path temporary_beside(const fs::path& path) {
  static std::atomic<int> counter{0};
  return path.parent_path() / fmt::format(".{}.{}.{}", path.filename().string(), ::getpid(), counter++);
}

bool has_safetensors(const fs::path& snapshot) {
  try {
    list_shards(snapshot);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

HubCache::HubCache(fs::path cache, std::string_view repo)
    : cache_(std::move(cache)), root_(cache_ / folder_name(repo)), folder_name_(folder_name(repo)) {}

fs::path HubCache::incomplete_blob(std::string_view etag) const {
  return root_ / "blobs" / fmt::format("{}.incomplete", etag);
}

fs::path HubCache::lock_path(std::string_view etag) const {
  return cache_ / ".locks" / folder_name_ / fmt::format("{}.lock", etag);
}

std::optional<std::string> HubCache::commit_of(std::string_view revision) const {
  if (is_commit_hash(revision)) return std::string(revision);
  const fs::path ref = root_ / "refs" / revision;
  if (!fs::is_regular_file(ref)) return std::nullopt;
  std::string commit = read_file(ref, 4096);
  commit.erase(commit.find_last_not_of(" \r\n") + 1);
  return is_commit_hash(commit) ? std::optional(commit) : std::nullopt;
}

void HubCache::write_ref(std::string_view revision, std::string_view commit) const {
  const fs::path ref = root_ / "refs" / revision;
  fs::create_directories(ref.parent_path());
  const fs::path temporary = temporary_beside(ref);
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const bool written =
      fd >= 0 && ::write(fd, commit.data(), commit.size()) == static_cast<ssize_t>(commit.size());
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!written) throw failed("{}: cannot write: {}", ref.string(), std::strerror(error));
  fs::rename(temporary, ref);
}

void HubCache::link(std::string_view commit, std::string_view file, std::string_view etag) const {
  const fs::path target = snapshot(commit) / file;
  fs::create_directories(target.parent_path());
  const fs::path temporary = temporary_beside(target);
  fs::create_symlink(blob(etag).lexically_relative(target.parent_path()), temporary);
  fs::rename(temporary, target);
}

std::optional<fs::path> complete_model(const fs::path& snapshot, const std::optional<std::string>& filename) {
  if (!fs::is_directory(snapshot)) return std::nullopt;
  if (filename) {
    const fs::path path = snapshot / *filename;
    return fs::is_regular_file(path) ? std::optional(path) : std::nullopt;
  }
  if (fs::exists(snapshot / "config.json") && has_safetensors(snapshot)) return snapshot;
  if (fs::exists(snapshot / kIndexFileName)) return std::nullopt;
  std::optional<fs::path> gguf;
  for (const auto& entry : fs::directory_iterator(snapshot)) {
    if (entry.path().extension() != ".gguf" || !fs::is_regular_file(entry.path())) continue;
    if (gguf) return std::nullopt;  // which one is the user's choice
    gguf = entry.path();
  }
  return gguf;
}

FileLock::FileLock(const fs::path& path, const std::function<void()>& on_wait) {
  fs::create_directories(path.parent_path());
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw failed("{}: cannot open: {}", path.string(), std::strerror(errno));
  bool told = false;
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      const int error = errno;
      ::close(fd_);
      throw failed("{}: cannot lock: {}", path.string(), std::strerror(error));
    }
    if (!std::exchange(told, true)) on_wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

FileLock::~FileLock() { ::close(fd_); }

bool is_commit_hash(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_safe_repo_path(std::string_view path) {
  if (path.empty() || path.size() > 1024 || !is_valid_utf8(path)) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    for (const char c : part) {
      if (static_cast<unsigned char>(c) < 0x20 || c == '\\' || c == 0x7F) return false;
    }
    begin = end + 1;
  }
  return true;
}

}  // namespace atom
