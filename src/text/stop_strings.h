// Stop strings: watches a stream of text for the first of several texts that end it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace atom::text {

// Of all matches the one with the earliest start counts, of those the shortest. Text is released as soon as
// it cannot be part of a match, so what is held back is the longest end of the text that begins some stop
// string. The result does not depend on how the text is cut into deltas. Time is linear in text times stop
// strings.
class StopStrings {
 public:
  static constexpr int kMaxStrings = 64;
  static constexpr int64_t kMaxBytes = 64 << 10;  // of all strings together

  // Refuses (invalid) an empty string and more or longer strings than the limits. No strings: never stops.
  static Result<StopStrings> create(std::vector<std::string> strings, bool include_stop_in_output);

  // Takes the next text and returns what may be shown now; nothing once stopped.
  std::string feed(std::string_view delta);
  // The text has ended: returns what was held back. May find that a match held open was the one.
  std::string flush();

  bool stopped() const { return stopped_; }
  // Once stopped: the string that matched, and where it begins in all the text fed, in bytes.
  const std::string& matched() const { return patterns_[static_cast<size_t>(match_)].text; }
  int64_t match_begin() const { return match_begin_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<int32_t> border;  // border[n]: longest proper border of the first n bytes
    int32_t matched = 0;          // longest prefix that ends the text fed so far
  };

  StopStrings() = default;
  std::string release(int64_t end);
  std::string finish();

  std::vector<Pattern> patterns_;
  std::string held_;          // the text behind what was released
  int64_t held_begin_ = 0;    // where held_ begins in all the text
  int64_t match_begin_ = -1;  // best match so far; an earlier one may still be open
  int32_t match_ = -1;
  bool include_stop_ = false;
  bool stopped_ = false;
};

}  // namespace atom::text
