#include "checkpoint/blob_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace atom {

struct BlobWriter::Hash {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  Hash() { CHECK(context != nullptr); }
  ~Hash() { EVP_MD_CTX_free(context); }
  void restart() { CHECK(EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1); }
  void add(const void* data, size_t bytes) { CHECK(EVP_DigestUpdate(context, data, bytes) == 1); }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
    unsigned size = 0;
    CHECK(EVP_DigestFinal_ex(context, digest.data(), &size) == 1);
    std::string text;
    for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }
};

BlobWriter::BlobWriter(std::filesystem::path partial, int64_t bytes, std::string etag)
    : partial_(std::move(partial)), bytes_(bytes), etag_(std::move(etag)) {
  const bool is_sha256 =
      etag_.size() == 64 && etag_.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (is_sha256) hash_ = std::make_unique<Hash>();
  fd_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw failed("{}: cannot create: {}", partial_.string(), std::strerror(errno));
  struct stat info;
  const bool usable = ::fstat(fd_, &info) == 0 && info.st_size <= bytes_;
  if (hash_) hash_->restart();
  if (!usable) {
    restart();
    return;
  }
  std::vector<char> piece(1 << 20);
  while (hash_ && position_ < info.st_size) {
    const ssize_t n = ::pread(fd_, piece.data(), piece.size(), position_);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      restart();
      return;
    }
    hash_->add(piece.data(), static_cast<size_t>(n));
    position_ += n;
  }
  position_ = info.st_size;
}

BlobWriter::~BlobWriter() { ::close(fd_); }

void BlobWriter::restart() {
  if (::ftruncate(fd_, 0) != 0) throw failed("{}: cannot write: {}", partial_.string(), std::strerror(errno));
  position_ = 0;
  if (hash_) hash_->restart();
}

bool BlobWriter::append(std::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) > bytes_ - position_) return false;
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), position_);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw failed("{}: cannot write: {}", partial_.string(), std::strerror(errno));
    if (hash_) hash_->add(bytes.data(), static_cast<size_t>(n));
    position_ += n;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::string BlobWriter::problem() {
  if (position_ != bytes_) return fmt::format("{} of {} bytes arrived", position_, bytes_);
  if (!hash_) return "";
  const std::string sum = hash_->hex();
  if (sum == etag_) return "";
  restart();
  return fmt::format("SHA-256 is {}, not {}", sum, etag_);
}

void BlobWriter::publish(const std::filesystem::path& path) {
  CHECK(position_ == bytes_);
  if (::fsync(fd_) != 0 || ::rename(partial_.c_str(), path.c_str()) != 0) {
    throw failed("{}: cannot write: {}", path.string(), std::strerror(errno));
  }
}

}  // namespace atom
