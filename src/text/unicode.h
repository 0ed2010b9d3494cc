// Unicode facts the tokenizer needs: stepping through and repairing UTF-8, character classes, normal forms.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace atom::text {

struct Utf8Step {
  enum Kind : uint8_t {
    character,   // one well-formed character
    ill_formed,  // bytes that no continuation can make a character
    truncated,   // the text ends inside a character that is well-formed so far
  } kind;
  uint8_t
      size;  // bytes of the character, or of the longest part (1 to 3 bytes) that is ill-formed or unfinished
};

// The step at the start of `bytes`, which must not be empty.
Utf8Step utf8_step(std::string_view bytes);

// The code point at text[pos], and moves pos behind it. The text must be well-formed there.
char32_t read_utf8(std::string_view text, size_t& pos);
void append_utf8(char32_t c, std::string& out);

// Turns a stream of bytes into well-formed UTF-8, cut anywhere. A character is released when its last byte
// arrives; ill-formed bytes become U+FFFD.
class Utf8Repair {
 public:
  enum class Mark { part, byte };  // one U+FFFD per longest ill-formed part (as WHATWG), or per byte
  explicit Utf8Repair(Mark mark = Mark::part) : mark_(mark) {}
  void feed(std::string_view bytes, std::string& out);
  void flush(std::string& out);  // an unfinished character at the end is ill-formed

 private:
  void put_mark(int bytes, std::string& out) const;

  Mark mark_;
  std::string pending_;  // an unfinished character, at most 3 bytes
};

std::string repair_utf8(std::string_view bytes);

bool is_white_space(char32_t c);  // property White_Space
bool is_word(char32_t c);         // Alphabetic, mark, decimal digit, connector punctuation, join control

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// These edit well-formed text in place. Lower-casing is per character (no final-sigma rule).
void normalize(NormalForm form, std::string& text);
void lowercase(std::string& text);

}  // namespace atom::text
