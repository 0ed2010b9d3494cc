// GGUF v2 and v3 (little endian): typed metadata and tensor table. Knows the container, not any model.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/stored_tensor.h"

namespace atom {

// Integers of every width are int64_t, floats double, arrays of bool are integers. Arrays of arrays are
// refused.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;

struct GgufFile {
  std::string file_name;  // opens every error message
  int version = 0;
  int64_t alignment = 32;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<StoredTensor> tensors;  // file order, GGUF names; shapes reversed into [out, in] order

  const GgufValue* find(std::string_view key) const;
  const StoredTensor* find_tensor(std::string_view name) const;
  // Typed lookups: empty when the key is absent; throw Error (invalid) naming the key for another type.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // accepts integers
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
};

// `bytes` is the whole file. Throws Error (invalid). Tensors of a known but unsupported element type are
// listed with an empty dtype (see usable_dtype); an unknown type number is an error that names the tensor.
GgufFile parse_gguf(std::span<const std::byte> bytes, std::string_view file_name);

}  // namespace atom
