// The byte alphabet of byte-level BPE: each byte has one visible character (printable Latin-1 bytes are
// themselves, the other 68 are U+0100 onward), so that a vocabulary of raw bytes can be written as text.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/unicode.h"

namespace atom::text {

inline constexpr char32_t kByteCharEnd = 0x144;  // all byte characters are below it

struct ByteAlphabet {
  std::array<char32_t, 256> to_char{};
  std::array<int16_t, kByteCharEnd> to_byte{};  // -1: stands for no byte

  constexpr ByteAlphabet() {
    to_byte.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      to_char[byte] = printable ? static_cast<char32_t>(byte) : next++;
      to_byte[to_char[byte]] = static_cast<int16_t>(byte);
    }
  }
};
inline constexpr ByteAlphabet kByteAlphabet;

inline void append_byte_chars(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) append_utf8(kByteAlphabet.to_char[static_cast<uint8_t>(byte)], out);
}

// Appends the bytes that `chars` stand for; false (and `out` unchanged) if some character stands for none.
inline bool append_char_bytes(std::string_view chars, std::string& out) {
  const size_t before = out.size();
  for (size_t pos = 0; pos < chars.size();) {
    const char32_t c = read_utf8(chars, pos);
    if (c >= kByteCharEnd || kByteAlphabet.to_byte[c] < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(kByteAlphabet.to_byte[c]));
  }
  return true;
}

}  // namespace atom::text
