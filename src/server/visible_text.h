// The text of an answer in which some special tokens show, for formats whose marks are special tokens. The
// engine's own text has none of them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace atom::server {

// One sample. Stop texts are taken off here as the engine takes them off its text (they were checked before).
class VisibleText {
 public:
  // The tokenizer must outlive this object.
  VisibleText(const text::Tokenizer& tokenizer, std::vector<int32_t> visible_ids,
              const std::vector<std::string>& stops, bool show_stop, int64_t min_tokens);

  // The text that a delta adds.
  std::string take(const OutputDelta& delta);

 private:
  const text::Tokenizer& tokenizer_;
  const std::vector<int32_t> visible_ids_;
  const int64_t min_tokens_;  // before them no stop text counts
  int64_t tokens_ = 0;
  text::Detokenizer detokenizer_;
  std::optional<text::StopStrings> stops_;
};

}  // namespace atom::server
