// Checkpoint: tensor name -> typed place in the files of a model folder (safetensors) or of a .gguf file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/stored_tensor.h"

namespace atom {

struct CheckpointFile {
  std::filesystem::path path;
  int64_t bytes = 0;
};

// A tensor that is in the files but is not offered, and why.
struct IgnoredTensor {
  std::string name;
  std::string file;
  std::string reason;
};

// Owns the open files and maps. After open() every header has been read and validated; no tensor bytes have.
// All const members are safe from many threads.
class Checkpoint {
 public:
  // `path` is a folder or a .gguf file. In a folder `model.safetensors.index.json` decides the shards when it
  // is there; else `model.safetensors`; else every *.safetensors but consolidated* and adapter files. Throws
  // Error (invalid) that names the file, the tensor and the remedy.
  static Checkpoint open(const std::filesystem::path& path);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  bool is_gguf() const;
  // By file, then offset. GGUF tensors carry their Hugging Face names where the name table knows them.
  const std::vector<StoredTensor>& tensors() const;
  const StoredTensor* find(std::string_view name) const;  // null when absent
  // The tensor, or Error (invalid) with the nearest names.
  const StoredTensor& get(std::string_view name) const;
  const std::vector<CheckpointFile>& files() const;
  const std::vector<IgnoredTensor>& ignored() const;

  // Tensors whose bytes are computed, in the place of one that is in the files: that one is not found any
  // more, but can still be read by a copy of its StoredTensor. To be called once, before other threads look.
  struct Replacement {
    std::string name;                    // of the one in the files
    std::vector<StoredTensor> computed;  // `file` and `offset` are not looked at
  };
  void replace(const std::vector<Replacement>& replacements);
  bool is_computed(const StoredTensor& tensor) const;
  // Where the bytes of a computed tensor are to be written; zeros before.
  std::byte* computed(const StoredTensor& tensor);

  // The tensor's bytes in a shared read-only map that lives as long as the Checkpoint. The first call for a
  // file maps it; a file whose size has changed since open() is an error. The address has no alignment
  // guarantee: safetensors headers of any length are legal.
  const std::byte* mapped(const StoredTensor& tensor) const;
  // Fills `out` from byte `offset` of the tensor by positioned reads, without mapping.
  void read(const StoredTensor& tensor, int64_t offset, std::span<std::byte> out) const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace atom
