// Compiled grammars of a vocabulary, kept for requests to come.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/grammar_matcher.h"
#include "text/response_format.h"
#include "text/tokenizer.h"

namespace atom::text {

// Safe from many threads.
class GrammarCache {
 public:
  // The tokenizer must outlive this object. Costs nothing until the first get().
  GrammarCache(const Tokenizer& tokenizer, const FormatChoice& format);

  // Of visible_special_tokens(format), those that are special in the vocabulary.
  const std::vector<std::string>& specials() const { return specials_; }

  // The grammar that `compile` makes, which must depend on `key` alone.
  using Compile = std::function<Result<std::shared_ptr<const Grammar>>()>;
  Result<std::shared_ptr<GrammarMasks>> get(const std::string& key, const Compile& compile);

 private:
  static constexpr size_t kMaxKept = 32;
  static constexpr size_t kMaxKey = 1 << 16;  // longer ones are compiled each time

  const Tokenizer& tokenizer_;
  std::vector<std::string> specials_;
  std::once_flag first_;
  std::shared_ptr<const TokenTrie> trie_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<GrammarMasks>>> kept_;  // the last used first
};

}  // namespace atom::text
