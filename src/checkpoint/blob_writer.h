// BlobWriter: one file of a download: appended to in pieces, hashed on the way, published when it is whole.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace atom {

// Invariant: the hash covers exactly the first position() bytes of the file.
class BlobWriter {
 public:
  // Opens `partial`, keeping (and hashing) what an earlier run left there. `etag` of 64 hexadecimal digits is
  // the SHA-256 of the content.
  BlobWriter(std::filesystem::path partial, int64_t bytes, std::string etag);
  ~BlobWriter();
  BlobWriter(const BlobWriter&) = delete;
  BlobWriter& operator=(const BlobWriter&) = delete;

  int64_t position() const { return position_; }
  void restart();
  // False, and nothing written, when the content would grow beyond the announced size. Throws Error (failed)
  // when the disk refuses.
  bool append(std::string_view bytes);
  // "" when the file is whole and its hash is right; else why not. A wrong hash restarts the file.
  std::string problem();
  // Moves the whole file to its final name.
  void publish(const std::filesystem::path& path);

 private:
  struct Hash;
  std::filesystem::path partial_;
  int64_t bytes_;
  std::string etag_;
  int64_t position_ = 0;
  int fd_ = -1;
  std::unique_ptr<Hash> hash_;
};

}  // namespace atom
