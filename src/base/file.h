// Files: whole reads, positioned reads and read-only maps. All failures throw Error and name the path.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace atom {

// The whole content. A file larger than max_bytes is refused (invalid), a missing or unreadable one too.
std::string read_file(const std::filesystem::path& path, int64_t max_bytes);

// An open, read-only regular file.
class File {
 public:
  explicit File(const std::filesystem::path& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }
  int fd() const { return fd_; }
  // Fills `out` from `offset`; a short file throws. Safe from many threads.
  void read_at(int64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// A whole file mapped read-only and shared: pages are the kernel's and shared between processes.
class FileMap {
 public:
  explicit FileMap(const std::filesystem::path& path);
  ~FileMap();
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(file_.size())}; }
  const File& file() const { return file_; }

 private:
  File file_;
  const std::byte* data_ = nullptr;
};

}  // namespace atom
