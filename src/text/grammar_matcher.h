// Follows a text through a grammar and says which tokens may come next.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar.h"
#include "text/token_trie.h"

namespace atom::text {

// All the ways in which a text can be read so far, by number. A stack is where a rule stands and the
// configuration that it returns to; a configuration is a set of stacks. Ways that differ in where they return
// to only are one stack, so that their number does not grow with every level of a recursion. Both are kept
// once and found again, so that a step that was taken before costs a table look-up.
class GrammarRun {
 public:
  static constexpr int32_t kDead = -1;     // no text of the grammar begins so
  static constexpr int32_t kTooMany = -2;  // more than kMaxReadings stacks
  static constexpr int32_t kDone = 0;      // the stack without rules: the text may end
  static constexpr size_t kMaxReadings = 1 << 10;

  struct Stack {
    int32_t state, below;
    auto operator<=>(const Stack&) const = default;
  };

  explicit GrammarRun(std::shared_ptr<const Grammar> grammar);

  // These give a configuration, or kDead, or kTooMany.
  int32_t begin(int32_t state);                // a rule that stands there alone
  int32_t step(int32_t config, uint8_t byte);  // behind the byte
  int32_t return_from(int32_t stack);          // when the rule on top is through
  // Starts afresh with only these configurations, and renumbers them.
  void keep(std::span<int32_t> configs);
  bool is_large() const { return configs_.size() + stacks_.size() > limit_; }  // time to start afresh
  std::span<const int32_t> stacks(int32_t config) const;
  const Stack& stack(int32_t index) const { return stacks_[static_cast<size_t>(index)]; }
  bool can_end(int32_t config) const { return stacks(config).front() == kDone; }
  bool must_end(int32_t config) const { return can_end(config) && stacks(config).size() == 1; }

 private:
  static constexpr size_t kLarge = 1 << 15;              // at up to a kilobyte each
  static constexpr size_t kMaxFound = 4 * kMaxReadings;  // duplicates included

  int32_t intern_stack(Stack stack);
  int32_t intern_config(std::vector<int32_t> stacks);
  int32_t intern_found();  // what found_ holds, and what goes on where its rules may be through
  void advance(Stack top, uint8_t byte);

  std::shared_ptr<const Grammar> grammar_;
  std::vector<Stack> stacks_;
  std::unordered_map<uint64_t, int32_t> stack_ids_;
  std::map<std::vector<int32_t>, int32_t> config_ids_;
  std::vector<const std::vector<int32_t>*> configs_;  // those below a stack come before those with it
  std::vector<std::unique_ptr<int32_t[]>> steps_;  // per configuration, by byte; kUnknown where not taken yet
  std::vector<Stack> found_;
  size_t limit_ = kLarge;
};

// A set of token ids as bits, 32 to a word, lowest first: what masks are made of.
using TokenBits = std::vector<uint32_t>;

// For each place in a grammar the tokens that may come there as far as its rule alone can tell, found when
// first asked for. Shared by all matchers of one grammar and vocabulary; safe from many threads.
class GrammarMasks {
 public:
  // What may follow a state: tokens that stay within the rule or end with it, and the nodes of the trie at
  // which the rule can be through, so that what is below it decides on.
  struct Local {
    TokenBits tokens;
    std::vector<uint32_t> exits;
  };

  GrammarMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie);
  std::shared_ptr<const Local> local(int32_t state);
  const std::shared_ptr<const Grammar>& grammar() const { return grammar_; }
  const TokenTrie& trie() const { return *trie_; }

 private:
  static constexpr size_t kMaxKept = 1024;

  const std::shared_ptr<const Grammar> grammar_;
  const std::shared_ptr<const TokenTrie> trie_;
  std::mutex mutex_;
  GrammarRun run_;
  std::unordered_map<int32_t, std::shared_ptr<const Local>> kept_;
};

// One per text; not thread-safe.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<GrammarMasks> masks);

  static constexpr int64_t kMaxRollback = 4096;

  // Takes more of the text. All of it, or, where the grammar does not allow it, nothing: false.
  bool accept(std::string_view bytes);
  // Takes back the last bytes accepted: at most kMaxRollback, and no more than there are.
  void rollback(int64_t bytes);
  int64_t size() const { return size_; }  // bytes accepted

  bool can_end() const { return run_.can_end(history_.back()); }
  bool must_end() const { return run_.must_end(history_.back()); }
  // The last accept() was refused because the grammar has too many readings of the text.
  bool failed() const { return failed_; }

  // Sets bit i of `mask` (words of 32, lowest bit first; for at least the trie's vocabulary) exactly if
  // accept() of token i would be true, or refused for too many readings, and clears the others. Tokens that
  // end the text are for the caller: see can_end().
  void mask(std::span<uint32_t> mask);

 private:
  static constexpr size_t kMaxKept = 128;
  const TokenBits& bits(int32_t config);
  void forget();

  const std::shared_ptr<GrammarMasks> masks_;
  GrammarRun run_;
  std::vector<int32_t> history_;  // configurations behind the last bytes, and the one before them
  int64_t size_ = 0;
  bool failed_ = false;
  std::unordered_map<int32_t, TokenBits> kept_;
};

}  // namespace atom::text
