// The feed of the response parsers.
#include "text/text_feed.h"

#include <algorithm>

namespace atom::text {

void TextFeed::append(std::string_view text) {
  constexpr size_t kWorthMoving = 4096;
  const size_t used = std::min(position_, mark_);
  if (used == buffer_.size() || (used > kWorthMoving && used > buffer_.size() / 2)) {
    buffer_.erase(0, used);
    position_ -= used;
    if (mark_ != kNoMark) mark_ -= used;
  }
  buffer_ += text;
}

std::string_view TextFeed::take(size_t bytes) {
  const std::string_view taken = rest().substr(0, bytes);
  consume(taken.size());
  return taken;
}

TextFeed::Seen TextFeed::see(std::string_view marker) const {
  const std::string_view text = rest();
  if (text.starts_with(marker)) return Seen::yes;
  return !closed_ && marker.starts_with(text) ? Seen::maybe : Seen::no;
}

TextFeed::Found TextFeed::find(std::span<const std::string_view> markers) const {
  const std::string_view text = rest();
  for (size_t begin = 0; begin < text.size(); ++begin) {
    const std::string_view tail = text.substr(begin);
    for (size_t i = 0; i < markers.size(); ++i) {
      if (tail.front() != markers[i].front()) continue;
      if (tail.starts_with(markers[i])) return {begin, static_cast<int>(i)};
      if (!closed_ && markers[i].starts_with(tail)) return {begin, -1};
    }
  }
  return {text.size(), -1};
}

size_t TextFeed::space() const {
  const std::string_view text = rest();
  return static_cast<size_t>(std::find_if_not(text.begin(), text.end(), is_ascii_space) - text.begin());
}

}  // namespace atom::text
