// The pre-tokenizers that GGUF files name instead of carrying.
#pragma once
#include <string_view>
#include <vector>

namespace atom::text {

struct GgufPreTokenizer {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;  // applied one after the other, each isolating its matches
  bool nfc = false;                        // the model was trained on normalized text
  bool ignore_merges = false;
};

// Throws Error (invalid) that lists the known names.
const GgufPreTokenizer& gguf_pre_tokenizer(std::string_view name);

}  // namespace atom::text
