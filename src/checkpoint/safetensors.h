// safetensors: header parser (strict, bounds everything before use) and a writer.
#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/stored_tensor.h"
#include "tensor/tensor.h"

namespace atom {

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            // by offset; `file` is 0, offsets count from the file's start
  std::map<std::string, std::string> metadata;  // the __metadata__ entry
};

// `head` is the file's first bytes (the length field and the whole header at least), `file_bytes` its full
// size. Throws Error (invalid) that opens with `file_name` for anything the format forbids: the data must be
// covered by the tensors exactly, without holes or overlaps.
SafetensorsHeader parse_safetensors(std::span<const std::byte> head, int64_t file_bytes,
                                    std::string_view file_name);

// Reads the header only.
SafetensorsHeader read_safetensors_header(const File& file);

struct NamedTensor {
  std::string name;
  Tensor tensor;  // contiguous, on the CPU, not a GGUF block type
};

// Writes a file that parse_safetensors accepts, through a temporary name in the same folder. Names must be
// distinct. A link keeps pointing to what is written. Throws Error (failed) on a write error, and where
// something stands that is no regular file.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace atom
