// Added tokens.
#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace atom::text {

namespace {

// Where the character that ends at `end` begins.
size_t previous(std::string_view text, size_t end) {
  size_t pos = end - 1;
  while (pos > 0 && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) --pos;
  return pos;
}
bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  size_t pos = previous(text, text.size());
  return is_word(read_utf8(text, pos));
}
bool starts_with_word(std::string_view text) {
  size_t pos = 0;
  return !text.empty() && is_word(read_utf8(text, pos));
}
size_t skip_spaces_left(std::string_view text, size_t end, size_t limit) {
  while (end > limit) {
    const size_t before = previous(text, end);
    size_t pos = before;
    if (!is_white_space(read_utf8(text, pos))) break;
    end = before;
  }
  return end;
}
size_t skip_spaces_right(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t pos = begin;
    if (!is_white_space(read_utf8(text, pos))) break;
    begin = pos;
  }
  return begin;
}

}  // namespace

bool overlaps(std::span<const TextRange> ranges, size_t begin, size_t end) {
  const auto first = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const TextRange& range) { return range.end <= begin; });
  return first != ranges.end() && first->begin < end;
}

uint32_t TextMatcher::child(uint32_t node, uint8_t byte) const {
  uint32_t at = nodes_[node].child;
  while (at != 0 && nodes_[at].byte != byte) at = nodes_[at].sibling;
  return at;
}

void TextMatcher::add(std::string_view text, int value) {
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    uint32_t next = i == 0 ? roots_[byte] : child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({.byte = byte});
      if (i == 0) {
        roots_[byte] = next;
      } else {
        nodes_[next].sibling = nodes_[node].child;
        nodes_[node].child = next;
      }
    }
    node = next;
  }
  if (node != 0 && nodes_[node].value == kNone) nodes_[node].value = value;
}

int TextMatcher::find(std::string_view text, size_t from, size_t& begin, size_t& end) const {
  if (nodes_.size() == 1) return kNone;
  for (begin = from; begin < text.size(); ++begin) {
    uint32_t node = roots_[static_cast<uint8_t>(text[begin])];
    int value = kNone;
    for (size_t pos = begin + 1; node != 0; ++pos) {
      if (nodes_[node].value != kNone) {
        value = nodes_[node].value;
        end = pos;
      }
      if (pos >= text.size()) break;
      node = child(node, static_cast<uint8_t>(text[pos]));
    }
    if (value != kNone) return value;
  }
  return kNone;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::string>& normal_contents)
    : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    if (token.special) special_ids_.insert(token.id);
    has_normalized_ |= token.normalized;
    if (token.normalized) {
      normal_.add(normal_contents[i], static_cast<int>(i));
    } else {
      raw_.add(token.content, static_cast<int>(i));
    }
  }
}

void AddedTokens::cut(std::string_view text, bool normalized, bool special_in_text, std::vector<Section>& out,
                      std::span<const TextRange> plain) const {
  out.clear();
  const TextMatcher& matcher = normalized ? normal_ : raw_;
  size_t done = 0, from = 0, begin = 0, end = 0;
  for (int match; (match = matcher.find(text, from, begin, end)) != TextMatcher::kNone;) {
    from = end;
    const AddedToken& token = tokens_[static_cast<size_t>(match)];
    if (token.special && (!special_in_text || overlaps(plain, begin, end))) continue;
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    if (token.lstrip) begin = skip_spaces_left(text, begin, done);
    if (token.rstrip) end = skip_spaces_right(text, end);
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
}

}  // namespace atom::text
