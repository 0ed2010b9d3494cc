// Stop strings: one Knuth-Morris-Pratt automaton per string.
#include "text/stop_strings.h"

#include <algorithm>

namespace atom::text {

Result<StopStrings> StopStrings::create(std::vector<std::string> strings, bool include_stop_in_output) {
  if (strings.size() > kMaxStrings)
    return invalid("stop: {} strings; at most {} are allowed", strings.size(), kMaxStrings);
  size_t bytes = 0;
  for (const std::string& text : strings) {
    if (text.empty()) return invalid("stop: an empty string would stop at once; leave it out");
    bytes += text.size();
  }
  if (bytes > kMaxBytes)
    return invalid("stop: {} bytes of stop strings; at most {} are allowed", bytes, kMaxBytes);
  StopStrings out;
  out.include_stop_ = include_stop_in_output;
  for (std::string& text : strings) {
    Pattern pattern{std::move(text), {0, 0}, 0};
    for (size_t n = 1; n < pattern.text.size(); ++n) {
      int32_t border = pattern.border[n];
      while (border > 0 && pattern.text[static_cast<size_t>(border)] != pattern.text[n]) {
        border = pattern.border[static_cast<size_t>(border)];
      }
      pattern.border.push_back(pattern.text[static_cast<size_t>(border)] == pattern.text[n] ? border + 1 : 0);
    }
    out.patterns_.push_back(std::move(pattern));
  }
  return out;
}

std::string StopStrings::feed(std::string_view delta) {
  if (stopped_) return {};
  int64_t end = held_begin_ + static_cast<int64_t>(held_.size());
  held_.append(delta);
  int64_t open = end;  // the earliest place where a match may still begin
  for (const char byte : delta) {
    ++end;
    open = end;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& p = patterns_[i];
      const auto size = static_cast<int32_t>(p.text.size());
      if (p.matched == size) p.matched = p.border[static_cast<size_t>(size)];
      while (p.matched > 0 && p.text[static_cast<size_t>(p.matched)] != byte) {
        p.matched = p.border[static_cast<size_t>(p.matched)];
      }
      if (p.text[static_cast<size_t>(p.matched)] == byte) ++p.matched;
      if (p.matched == size && (match_ < 0 || end - size < match_begin_)) {
        match_begin_ = end - size;
        match_ = static_cast<int32_t>(i);
      }
      open = std::min(open, end - (p.matched == size ? p.border[static_cast<size_t>(size)] : p.matched));
    }
    if (match_ >= 0 && open >= match_begin_) return finish();
  }
  if (delta.empty()) return {};
  return release(match_ >= 0 ? std::min(open, match_begin_) : open);
}

std::string StopStrings::flush() {
  if (stopped_) return {};
  if (match_ >= 0) return finish();
  return release(held_begin_ + static_cast<int64_t>(held_.size()));
}

std::string StopStrings::finish() {
  stopped_ = true;
  const int64_t stop_bytes = include_stop_ ? static_cast<int64_t>(matched().size()) : 0;
  std::string out = release(match_begin_ + stop_bytes);
  held_.clear();
  return out;
}

std::string StopStrings::release(int64_t end) {
  const auto bytes = static_cast<size_t>(end - held_begin_);
  std::string out = held_.substr(0, bytes);
  held_.erase(0, bytes);
  held_begin_ = end;
  return out;
}

}  // namespace atom::text
