#include "server/visible_text.h"

#include <algorithm>

namespace atom::server {

VisibleText::VisibleText(const text::Tokenizer& tokenizer, std::vector<int32_t> visible_ids,
                         const std::vector<std::string>& stops, bool show_stop)
    : tokenizer_(tokenizer),
      visible_ids_(std::move(visible_ids)),
      detokenizer_(tokenizer, /*skip_special_tokens=*/true) {
  if (stops.empty()) return;
  Result<text::StopStrings> made = text::StopStrings::create(stops, show_stop);
  if (made) stops_ = std::move(made).value();
}

std::string VisibleText::take(const OutputDelta& delta) {
  std::string text;
  for (const int32_t id : delta.token_ids) {
    if (std::find(visible_ids_.begin(), visible_ids_.end(), id) != visible_ids_.end()) {
      text += detokenizer_.flush();
      text += tokenizer_.id_to_token(id);
    } else if (Result<std::string> more = detokenizer_.feed(id)) {
      text += more.value();
    }
  }
  if (delta.finish) text += detokenizer_.flush();
  if (!stops_) return text;
  text = stops_->feed(text);
  if (delta.finish && !stops_->stopped()) text += stops_->flush();
  return text;
}

}  // namespace atom::server
