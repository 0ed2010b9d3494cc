#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace atom {

File::File(const std::filesystem::path& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // of a pipe, too, without a writer
  if (fd_ < 0) throw invalid("{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat info;
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw invalid("{}: not a regular file", path.string());
  }
  size_ = info.st_size;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

void File::read_at(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw failed("{}: read at byte {} failed: {}", path_.string(), offset, std::strerror(errno));
    if (n == 0) throw invalid("{}: ends at byte {}, {} more expected", path_.string(), offset, out.size());
    out = out.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

FileMap::FileMap(const std::filesystem::path& path) : file_(path) {
  if (file_.size() == 0) return;
  void* p = ::mmap(nullptr, static_cast<size_t>(file_.size()), PROT_READ, MAP_SHARED, file_.fd(), 0);
  if (p == MAP_FAILED) throw failed("{}: cannot map: {}", path.string(), std::strerror(errno));
  data_ = static_cast<const std::byte*>(p);
}

FileMap::~FileMap() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(file_.size()));
}

std::string read_file(const std::filesystem::path& path, int64_t max_bytes) {
  const File file(path);
  if (file.size() > max_bytes) {
    throw invalid("{}: {} bytes, more than the {} allowed for this kind of file", path.string(), file.size(),
                  max_bytes);
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace atom
