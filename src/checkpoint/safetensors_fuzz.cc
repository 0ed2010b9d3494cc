// Fuzz target: any bytes as a safetensors file, and as a shard index.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atom;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const SafetensorsHeader header = parse_safetensors(bytes, static_cast<int64_t>(size), "fuzz");
    for (const StoredTensor& tensor : header.tensors) {
      CHECK(tensor.offset >= 8 && tensor.bytes >= 0 &&
            tensor.offset + tensor.bytes <= static_cast<int64_t>(size));
      try {
        usable_dtype(tensor);
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {
  }
  try {
    parse_shard_index(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const Error&) {
  }
  return 0;
}
