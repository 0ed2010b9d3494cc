// Token ids to text as they come.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "text/unicode.h"

namespace atom::text {

class Tokenizer;

// All deltas together are decode() of all ids, however the ids are cut. A delta holds whole characters; one
// that is unfinished waits for its last byte. Not thread-safe.
class Detokenizer {
 public:
  // The tokenizer must outlive this object.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);

  // The text that these ids complete. An id without a token is an error, and nothing has been taken then.
  Result<std::string> feed(std::span<const int32_t> ids);
  Result<std::string> feed(int32_t id) { return feed(std::span(&id, 1)); }
  // The ids have ended: what was waiting; an unfinished character becomes U+FFFD.
  std::string flush();

 private:
  std::string strip_ends(std::string text);

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  bool opens_text_ = true;
  Utf8Repair repair_;
  int strip_left_;    // characters still to drop at the start
  std::string tail_;  // characters to drop if the text ends here
};

}  // namespace atom::text
