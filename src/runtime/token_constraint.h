// Keeps one sequence's output within a grammar: masks logits by the text before them.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "text/grammar_matcher.h"

namespace atom {

// Follows the output of one sequence. Used by one thread at a time: by the engine's between steps, within a
// step by the one that samples the sequence.
class TokenConstraint {
 public:
  explicit TokenConstraint(std::shared_ptr<text::GrammarMasks> masks);

  // Leaves only tokens that the grammar allows next, and `stop_ids` where the text may end; nothing behind
  // the end.
  void mask(std::span<float> logits, std::span<const int32_t> stop_ids);
  // Takes a token that mask() has left; `stop`: it ends the text. Provisional until the step is over. False,
  // and nothing is taken: the grammar has too many readings of the text with it.
  bool append(int32_t id, bool stop);
  // The step is over: of the tokens appended in it the first `count` stay, the others are taken back.
  void keep(size_t count);
  // The text is whole and nothing can follow it.
  bool must_end() const { return ended_ || matcher_.must_end(); }
  // Why mask() left no token, or append() did not take one, the last time; empty if neither is so.
  std::string problem(std::span<const int32_t> stop_ids);

 private:
  text::GrammarMatcher matcher_;
  const std::shared_ptr<text::GrammarMasks> masks_;
  std::vector<uint32_t> bits_;
  std::vector<int64_t> appended_;  // bytes of the tokens appended in this step
  bool ended_ = false;             // the last of them was a stop
};

}  // namespace atom
