#include "server/visible_text.h"

#include <algorithm>

namespace atom::server {

VisibleText::VisibleText(const text::Tokenizer& tokenizer, std::vector<int32_t> visible_ids,
                         const std::vector<std::string>& stops, bool show_stop, int64_t min_tokens)
    : tokenizer_(tokenizer),
      visible_ids_(std::move(visible_ids)),
      min_tokens_(min_tokens),
      detokenizer_(tokenizer, /*skip_special_tokens=*/true) {
  if (stops.empty()) return;
  Result<text::StopStrings> made = text::StopStrings::create(stops, show_stop);
  if (made) stops_ = std::move(made).value();
}

std::string VisibleText::take(const OutputDelta& delta) {
  std::string text;
  const auto show = [&](std::string_view more) {
    text += stops_ && tokens_ >= min_tokens_ ? stops_->feed(more) : std::string(more);
  };
  for (const int32_t id : delta.token_ids) {
    ++tokens_;
    if (std::find(visible_ids_.begin(), visible_ids_.end(), id) != visible_ids_.end()) {
      show(detokenizer_.flush());
      show(tokenizer_.id_to_token(id));
    } else if (Result<std::string> more = detokenizer_.feed(id)) {
      show(more.value());
    }
  }
  if (!delta.finish) return text;
  show(detokenizer_.flush());
  if (stops_ && !stops_->stopped()) text += stops_->flush();
  return text;
}

}  // namespace atom::server
