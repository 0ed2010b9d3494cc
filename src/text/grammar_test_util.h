// Helpers of the grammar tests.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_matcher.h"

namespace atom::text {

using GrammarPtr = std::shared_ptr<const Grammar>;

// A vocabulary of all bytes and of pieces that cross the borders of JSON.
inline std::vector<std::string> test_tokens() {
  std::vector<std::string> tokens = {""};  // as of a special token
  for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
  for (const char* piece :
       {"{\"",         "\":",  "\": ",     "\", \"", "\",",     "\"}",      "}}",           "]}",
        "},{",         "[[",   "[]",       "{}",     " {",      "  ",       "\n  ",         "true",
        "false",       "null", "ull",      "123",    "12.5",    "-1",       "0.",           "e+",
        "abc",         "a\"",  "\\n",      "\\\"",   "\\u00e9", "\xC3\xA9", "\xE4\xB8\xAD", "\xB8\xAD",
        "a\": 1, \"b", "name", "\"name\"", "1,2",    ", ",      "], [",     "2024-01",      "abcabc"}) {
    tokens.emplace_back(piece);
  }
  std::mt19937 random(3);
  constexpr std::string_view kBytes = "{}[]\",: \n\\au01-.etr";
  for (int i = 0; i < 600; ++i) {
    std::string token;
    for (size_t n = 1 + random() % 4; n > 0; --n) token += kBytes[random() % kBytes.size()];
    tokens.push_back(token);
  }
  return tokens;
}

inline const std::shared_ptr<const TokenTrie>& test_trie() {
  static const std::vector<std::string> tokens = test_tokens();
  static const std::shared_ptr<const TokenTrie> trie =
      std::make_shared<TokenTrie>(std::vector<std::string_view>(tokens.begin(), tokens.end()));
  return trie;
}

inline GrammarMatcher matcher_of(const GrammarPtr& grammar) {
  return GrammarMatcher(std::make_shared<GrammarMasks>(grammar, test_trie()));
}

// A grammar of "xQ", in more readings than are followed, and of "xz" and "y".
inline std::string too_ambiguous() {
  std::string root = "root ::= \"y\" | \"xz\"", rules;
  for (int i = 0; i < 600; ++i) {
    const std::string n = std::to_string(i);
    root += " | a" + n;
    rules += "a" + n + " ::= \"x\" b" + n + " | \"x\" c" + n + "\n";
    rules += "b" + n + " ::= \"Q\" \"1\"*\nc" + n + " ::= \"Q\" \"2\"*\n";
  }
  return root + "\n" + rules;
}

inline bool matches(const GrammarPtr& grammar, std::string_view text) {
  GrammarMatcher matcher = matcher_of(grammar);
  return matcher.accept(text) && matcher.can_end();
}

inline bool bit(std::span<const uint32_t> mask, size_t id) { return (mask[id / 32] >> (id % 32) & 1) != 0; }

// Expects the mask to allow exactly the tokens that are accepted one by one.
template <class Token>
void expect_exact_mask(GrammarMatcher& matcher, const std::vector<Token>& tokens) {
  std::vector<uint32_t> mask((tokens.size() + 31) / 32 + 1, ~0u);
  matcher.mask(mask);
  for (size_t id = 0; id < mask.size() * 32; ++id) {
    bool allowed = false;
    if (id < tokens.size() && !tokens[id].empty() && matcher.accept(tokens[id])) {
      allowed = true;
      matcher.rollback(static_cast<int64_t>(tokens[id].size()));
    }
    ASSERT_EQ(bit(mask, id), allowed)
        << "token " << id << " \"" << (id < tokens.size() ? tokens[id] : Token()) << '"';
  }
}

// Takes random allowed tokens until the text may end, or `limit` tokens; checks the mask on the way.
inline std::string random_text(const GrammarPtr& grammar, uint32_t seed, int limit, bool check_masks) {
  static const std::vector<std::string> tokens = test_tokens();
  std::mt19937 random(seed);
  GrammarMatcher matcher = matcher_of(grammar);
  std::string text;
  std::vector<uint32_t> mask((tokens.size() + 31) / 32);
  for (int step = 0; step < limit; ++step) {
    if (matcher.can_end() && (matcher.must_end() || random() % 4 == 0)) return text;
    if (check_masks) expect_exact_mask(matcher, tokens);
    matcher.mask(mask);
    std::vector<size_t> allowed;
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (bit(mask, id)) allowed.push_back(id);
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "stuck behind " << text;
      return text;
    }
    const std::string& token = tokens[allowed[random() % allowed.size()]];
    EXPECT_TRUE(matcher.accept(token));
    text += token;
  }
  return {};
}

}  // namespace atom::text
