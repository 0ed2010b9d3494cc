// Text that has arrived and is not yet consumed: what the response parsers look at.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace atom::text {

inline bool is_ascii_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// A parser may decide only on what no further text can change, so that the result does not depend on how the
// text was cut: every look ahead answers `maybe` until more text, or the end of it, decides.
class TextFeed {
 public:
  enum class Seen : uint8_t { no, yes, maybe };
  struct Found {
    size_t begin;  // [0, begin) of the rest holds no marker and no beginning of one
    int index;     // of the marker that stands at `begin`; -1: none is certain yet
  };

  void append(std::string_view text);
  void close() { closed_ = true; }  // no more text will come
  bool closed() const { return closed_; }

  std::string_view rest() const { return std::string_view(buffer_).substr(position_); }
  bool empty() const { return position_ == buffer_.size(); }
  void consume(size_t bytes) { position_ += bytes; }
  std::string_view take(size_t bytes);  // consumes; valid until the next append

  // Whether the rest begins with `marker`.
  Seen see(std::string_view marker) const;
  // The leftmost marker, of several at one place the first listed. Markers must not be empty.
  Found find(std::span<const std::string_view> markers) const;
  // Bytes of ASCII white space that the rest begins with.
  size_t space() const;

  // From here on consumed text is kept until release(); rewind() goes back to here.
  void mark() { mark_ = position_; }
  void rewind() { position_ = mark_, mark_ = kNoMark; }
  void release() { mark_ = kNoMark; }

 private:
  static constexpr size_t kNoMark = std::string::npos;

  std::string buffer_;
  size_t position_ = 0, mark_ = kNoMark;
  bool closed_ = false;
};

}  // namespace atom::text
