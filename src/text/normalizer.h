// The normalizer of a tokenizer.json: edits the text before it is cut into words.
#pragma once
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "text/tokenizer_component.h"
#include "text/unicode.h"
#include "text/unicode_regex.h"

namespace atom::text {

// Replaces every match of a pattern by a fixed text; also a decoder step.
class Replace {
 public:
  explicit Replace(const Component& config);  // {"pattern": {"String" or "Regex": ...}, "content": ...}
  // A text that would outgrow max_bytes is an Error (invalid).
  void apply(std::string& text, size_t max_bytes, RegexScratch& scratch) const;

 private:
  std::string place_;
  std::string from_, to_;              // a literal pattern is searched for directly
  std::optional<UnicodeRegex> regex_;  // set for a Regex
};

// Immutable. The default one changes nothing.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(const Component& config);
  // Throws Error (invalid) if the text grows out of all proportion.
  void apply(std::string& text, RegexScratch& scratch) const;
  bool is_identity() const { return steps_.empty(); }

 private:
  struct Prepend {
    std::string text;
  };
  struct Lowercase {};
  struct Strip {
    bool left, right;
  };
  using Step = std::variant<NormalForm, Prepend, Replace, Lowercase, Strip>;

  void add(const Component& config);
  std::vector<Step> steps_;
};

}  // namespace atom::text
