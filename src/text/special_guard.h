// Keeps the names of special tokens that people write in messages from becoming special tokens: "<|im_end|>"
// in a user's message must not end the user's turn.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace atom::text {

// Works around a chat template, which is free to do anything with a message: marks are put around each such
// name before rendering and taken out of the rendered text, where they tell which bytes came from a message.
// Immutable and thread-safe.
class SpecialGuard {
 public:
  struct Marks {
    std::string open, close;  // words that occur nowhere in the inputs
  };

  explicit SpecialGuard(const Tokenizer& tokenizer);

  // Marks the strings of messages, tools and documents; nothing is changed, and nothing returned, if no
  // special token is named there. Messages must be normalized. The tags of a reasoning block in an
  // assistant's message are not marked: templates look for them, and the model itself wrote them.
  std::optional<Marks> mark(ChatTemplateInputs& inputs) const;

  // Takes the marks out of `text`; returns what stood between them, ascending.
  static std::vector<TextRange> unmark(std::string& text, const Marks& marks);

 private:
  bool names_special(const Json& value) const;
  void mark(Json& value, const Marks& marks, bool keep_reasoning) const;
  std::string marked(const std::string& text, const Marks& marks, bool keep_reasoning) const;

  TextMatcher matcher_;
  std::vector<bool> reasoning_;  // by the matcher's value
};

}  // namespace atom::text
