// Added tokens: texts that become one token wherever they stand, before the model sees the rest.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace atom::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space behind it along
  bool single_word = false;  // only where no word character touches it
  bool normalized = false;   // looked for in the normalized text
  bool special = false;
};

// Finds texts, the longest at the leftmost place first. Byte trie; a text of n bytes costs O(n) plus the
// length of what nearly matches.
class TextMatcher {
 public:
  static constexpr int kNone = -1;
  TextMatcher() : nodes_(1) {}
  // `value` is given back on a match; the first one stays if a text is added twice.
  void add(std::string_view text, int value);
  // The first match at or behind `from`: its value, begin and end; kNone if there is none.
  int find(std::string_view text, size_t from, size_t& begin, size_t& end) const;

 private:
  struct Node {
    uint32_t child = 0, sibling = 0;  // 0: none
    int32_t value = kNone;
    uint8_t byte = 0;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_;
  std::array<uint32_t, 256> roots_{};  // children of the root by first byte
};

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
};
// Does [begin, end) touch one of these ranges, which are ascending and apart?
bool overlaps(std::span<const TextRange> ranges, size_t begin, size_t end);

// Immutable after construction.
class AddedTokens {
 public:
  // A stretch of the text: a token, or (id -1) text in between.
  struct Section {
    size_t begin, end;
    int32_t id;
  };

  AddedTokens() = default;
  // normal_contents[i]: the content of tokens[i] as the normalizer leaves it.
  AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::string>& normal_contents);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  bool is_special(int32_t id) const { return special_ids_.contains(id); }
  bool has_normalized() const { return has_normalized_; }

  // Cuts `text` at the tokens with this value of `normalized`. Without `special_in_text` special ones stay
  // text; so do those that overlap one of the `plain` ranges, which are ascending and apart.
  void cut(std::string_view text, bool normalized, bool special_in_text, std::vector<Section>& out,
           std::span<const TextRange> plain = {}) const;

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_set<int32_t> special_ids_;
  TextMatcher raw_, normal_;
  bool has_normalized_ = false;
};

}  // namespace atom::text
