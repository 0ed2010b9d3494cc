// Test helpers: a folder of one's own that disappears, files with given content, the message of an Error.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace atom::testing {

class TestFolder {
 public:
  TestFolder() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("atom_checkpoint_test." + std::to_string(::getpid()) + "." + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  std::filesystem::path write(std::string_view name, std::string_view content) const {
    const std::filesystem::path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return path;
  }

 private:
  std::filesystem::path path_;
};

inline std::span<const std::byte> as_span(std::string_view text) { return std::as_bytes(std::span(text)); }

// The message of the Error that fn throws; the test fails when it throws none.
template <class Fn>
std::string error_of(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return "";
}

#define EXPECT_ERROR(expression, part)                                                             \
  do {                                                                                             \
    const std::string message = ::atom::testing::error_of([&] { (void)(expression); });            \
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << (part) << "\" in: " << message; \
  } while (0)

// The folder of shared reference data, or empty.
inline std::string shared_folder() {
  const char* path = std::getenv("ATOM_SHARED");
  return path == nullptr ? "" : path;
}

}  // namespace atom::testing
