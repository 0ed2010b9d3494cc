// Fuzz target: any bytes as a GGUF file, through to the model's config and tokenizer.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/rope_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atom;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const GgufFile file = parse_gguf(bytes, "fuzz");
    for (const StoredTensor& tensor : file.tensors) {
      CHECK(tensor.offset >= 0 && tensor.bytes >= 0 &&
            tensor.offset + tensor.bytes <= static_cast<int64_t>(size));
      gguf_to_hf_name(tensor.name);
    }
    const GgufModel model = translate_gguf(file, bytes);
    const ConfigReader config(model.config, "fuzz");
    parse_rope(config, read_head_dim(config));
    model.config.dump();
  } catch (const Error&) {
  }
  return 0;
}
