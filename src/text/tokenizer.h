// Text to token ids and back, as the checkpoint's tokenizer.json or GGUF vocabulary says.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/gguf_vocab.h"

namespace atom::text {

struct EncodeOptions {
  bool add_special_tokens = true;  // what the post-processor puts around the text, such as a BOS
  bool special_in_text = true;     // false: the text of a special token stays plain text
  // Where the text of a special token stays plain text nevertheless: ascending and apart, for well-formed
  // UTF-8.
  std::span<const TextRange> plain = {};
};

// A byte-pair tokenizer: normalizer, added tokens, pre-tokenizer, BPE model, post-processor and decoder.
// Gives the ids of the Python `tokenizers` package. Immutable: every method is safe from many threads.
class Tokenizer {
 public:
  // These throw Error (invalid) that names the file and the JSON path; models other than BPE are refused.
  static std::unique_ptr<Tokenizer> from_file(const std::filesystem::path& tokenizer_json);
  static std::unique_ptr<Tokenizer> from_json(std::string_view json, std::string_view name);
  static std::unique_ptr<Tokenizer> from_gguf(const GgufVocab& vocab);
  ~Tokenizer();

  // Ill-formed UTF-8 counts as U+FFFD. Linear in the text, which may have 256 MiB (else Error, invalid).
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Well-formed UTF-8. An id without a token is an error. Runs of <0xXX> tokens that are not UTF-8 keep their
  // well-formed characters, so that text can stream; the `tokenizers` package marks every byte of the run.
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  int32_t vocab_size() const;  // largest id + 1; ids in between may be free
  bool has(int32_t id) const;
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::string_view id_to_token(int32_t id) const;  // as the file writes it; "" for an id without a token
  bool is_special(int32_t id) const;
  const AddedTokens& added_tokens() const;
  // The raw bytes that the token contributes in the middle of a text; "" for an id without a token.
  std::string_view token_bytes(int32_t id) const;

 private:
  friend class Detokenizer;
  friend struct TokenizerParts;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace atom::text
