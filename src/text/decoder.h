// The decoder of a tokenizer.json: from tokens back to text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/normalizer.h"
#include "text/tokenizer_component.h"
#include "text/unicode.h"

namespace atom::text {

// A chain of decoders in a form that can stream: steps on each token, tokens to bytes, and characters
// stripped at the two ends of the whole text. Immutable. The default one puts a space between tokens.
class Decoder {
 public:
  // Up to `left` characters `content` at the start of the text and up to `right` at its end are dropped.
  struct Strip {
    char32_t content = ' ';
    int left = 0, right = 0;
  };

  Decoder() = default;
  explicit Decoder(const Component& config);

  // Appends the bytes of one token. `opens_text`: it is the first of the text. `literal`: an added token,
  // which is not written in the byte alphabet.
  void append(std::string_view token, bool literal, bool opens_text, std::string& out,
              RegexScratch& scratch) const;
  // True if a token's bytes depend on whether it opens the text.
  bool opening_differs() const { return opening_differs_; }
  const Strip& strip() const { return strip_; }
  Utf8Repair::Mark mark() const {
    return bytes_ == Bytes::fallback ? Utf8Repair::Mark::byte : Utf8Repair::Mark::part;
  }

 private:
  struct Metaspace {
    std::string mark;
    bool drops_first;
  };
  using Step = std::variant<Replace, Metaspace, Strip>;
  enum class Bytes { text, fallback, alphabet };  // what a token stands for after the steps

  void add(const Component& config);
  void add_strip(const Component& config);

  std::vector<Step> steps_;
  Bytes bytes_ = Bytes::text;
  bool fused_ = false;  // the tokens have become one text
  bool opening_differs_ = true;
  bool separated_ = true;  // by spaces: there is no decoder
  Strip strip_;
};

}  // namespace atom::text
