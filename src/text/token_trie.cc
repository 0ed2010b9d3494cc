// Building the trie from the sorted vocabulary.
#include "text/token_trie.h"

#include <algorithm>
#include <deque>

#include "text/tokenizer.h"

namespace atom::text {

TokenTrie::TokenTrie(std::span<const std::string_view> tokens) { build(tokens); }

TokenTrie::TokenTrie(const Tokenizer& tokenizer, std::span<const std::string> visible) {
  std::vector<std::string_view> tokens;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    const bool left_out = tokenizer.is_special(id) || bytes.size() > kMaxTokenBytes;
    tokens.push_back(left_out ? std::string_view() : bytes);
  }
  std::deque<std::string> spelled;
  for (const std::string& text : visible) {
    const auto id = tokenizer.token_to_id(text);
    if (!id || !tokenizer.is_special(*id)) continue;
    spelled.push_back(kSpecial + text);
    tokens[static_cast<size_t>(*id)] = spelled.back();
  }
  build(tokens);
}

void TokenTrie::build(std::span<const std::string_view> tokens) {
  vocab_size_ = static_cast<int32_t>(tokens.size());
  begins_.push_back(0);
  for (const std::string_view token : tokens) {
    bytes_ += token;
    begins_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  for (int32_t id = 0; id < vocab_size_; ++id) {
    if (!tokens[static_cast<size_t>(id)].empty()) ids_.push_back(id);
  }
  std::sort(ids_.begin(), ids_.end(), [&](int32_t a, int32_t b) {
    const std::string_view left = tokens[static_cast<size_t>(a)], right = tokens[static_cast<size_t>(b)];
    return left != right ? left < right : a < b;
  });
  nodes_.push_back({0, 0, 0});
  std::vector<uint32_t> path = {0};  // nodes of the token before
  std::string_view before;
  for (size_t i = 0; i < ids_.size(); ++i) {
    const std::string_view token = tokens[static_cast<size_t>(ids_[i])];
    const auto shared = static_cast<size_t>(
        std::mismatch(before.begin(), before.end(), token.begin(), token.end()).first - before.begin());
    while (path.size() > shared + 1) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
    for (size_t at = shared; at < token.size(); ++at) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(i), static_cast<uint8_t>(token[at])});
    }
    before = token;
  }
  for (const uint32_t open : path) nodes_[open].end = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({0, static_cast<uint32_t>(ids_.size()), 0});
}

}  // namespace atom::text
