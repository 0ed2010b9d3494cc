// The pre-tokenizer of a tokenizer.json: cuts a text into the words that BPE works on.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "text/tokenizer_component.h"
#include "text/unicode_regex.h"

namespace atom::text {

// Bytes [begin, end) of the text; never empty.
struct Piece {
  uint32_t begin, end;
};

// Immutable. The default one leaves the text whole.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(const Component& config);

  // True if the last step writes bytes as visible characters (bpe_bytes.h). That step is left to the model,
  // which reads raw bytes faster; every other step has been carried out on the pieces.
  bool gives_bytes() const { return gives_bytes_; }

  // Replaces `pieces` by those of `text`, which some steps edit. `opens_text`: it is the beginning of what
  // the user gave.
  void apply(std::string& text, bool opens_text, std::vector<Piece>& pieces, RegexScratch& scratch) const;

 private:
  enum class Delimiter { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  struct Split {
    UnicodeRegex pattern;
    Delimiter delimiter;
    bool invert;
    void apply(const std::string& text, std::vector<Piece>& pieces, RegexScratch& scratch) const;
  };
  struct PrefixSpace {};  // each piece that does not begin with a space gets one
  struct ByteChars {};    // each byte becomes its visible character
  struct Mark {           // spaces become a mark, which may also be put in front
    std::string mark;
    enum Prepend { always, first, never } prepend;
  };
  using Step = std::variant<Split, PrefixSpace, ByteChars, Mark>;

  void add(const Component& config);
  static Delimiter delimiter_of(const Component& config);
  void add_split(const Component& config);
  void add_metaspace(const Component& config);

  std::vector<Step> steps_;
  bool gives_bytes_ = false;
};

}  // namespace atom::text
