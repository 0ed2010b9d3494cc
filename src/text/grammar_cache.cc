#include "text/grammar_cache.h"

namespace atom::text {

GrammarCache::GrammarCache(const Tokenizer& tokenizer, const FormatChoice& format) : tokenizer_(tokenizer) {
  for (const std::string& text : visible_special_tokens(format)) {
    const auto id = tokenizer.token_to_id(text);
    if (id && tokenizer.is_special(*id)) specials_.push_back(text);
  }
}

Result<std::shared_ptr<GrammarMasks>> GrammarCache::get(const std::string& key, const Compile& compile) {
  std::call_once(first_, [&] { trie_ = std::make_shared<TokenTrie>(tokenizer_, specials_); });
  {
    const std::lock_guard lock(mutex_);
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->first != key) continue;
      kept_.splice(kept_.begin(), kept_, it);
      return kept_.front().second;
    }
  }
  Result<std::shared_ptr<const Grammar>> grammar = compile();
  if (!grammar.ok()) return grammar.error();
  auto masks = std::make_shared<GrammarMasks>(std::move(grammar).value(), trie_);
  if (key.size() > kMaxKey) return masks;
  const std::lock_guard lock(mutex_);
  kept_.emplace_front(key, masks);
  if (kept_.size() > kMaxKept) kept_.pop_back();
  return masks;
}

}  // namespace atom::text
