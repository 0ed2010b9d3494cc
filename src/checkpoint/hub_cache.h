// The on-disk layout of the Hugging Face cache: blobs by etag, snapshots of symbolic links, refs, locks.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/hub.h"

namespace atom {

// Paths of one repository in a cache. Building one touches nothing.
class HubCache {
 public:
  HubCache(std::filesystem::path cache, std::string_view repo);

  std::filesystem::path blob(std::string_view etag) const { return root_ / "blobs" / etag; }
  std::filesystem::path incomplete_blob(std::string_view etag) const;
  std::filesystem::path snapshot(std::string_view commit) const { return root_ / "snapshots" / commit; }
  std::filesystem::path lock_path(std::string_view etag) const;

  // The commit that the cache knows for a branch, a tag or a commit; empty when unknown.
  std::optional<std::string> commit_of(std::string_view revision) const;
  void write_ref(std::string_view revision, std::string_view commit) const;
  // Makes snapshots/<commit>/<file> a relative link to the blob, replacing what is there.
  void link(std::string_view commit, std::string_view file, std::string_view etag) const;

 private:
  std::filesystem::path cache_, root_, folder_name_;
};

// What can be opened in a snapshot that has everything it needs; empty for an incomplete one. With a file
// name: that .gguf.
std::optional<std::filesystem::path> complete_model(const std::filesystem::path& snapshot,
                                                    const std::optional<std::string>& filename);

// An exclusive lock between processes, held while the object lives; shares its files and kind with other
// programs that use the cache. `on_wait` is called once when somebody else holds it.
class FileLock {
 public:
  FileLock(const std::filesystem::path& path, const std::function<void()>& on_wait);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

bool is_commit_hash(std::string_view text);     // 40 hexadecimal digits
bool is_safe_repo_path(std::string_view path);  // relative, no "..", plain components

}  // namespace atom
