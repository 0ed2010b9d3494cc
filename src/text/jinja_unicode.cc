// Code points, and case and classes from ICU.
#include "text/jinja_unicode.h"

#include <string.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

namespace atom::jinja {
namespace {

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

icu::UnicodeString to_icu(std::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
}

std::string from_icu(const icu::UnicodeString& text) {
  std::string out;
  text.toUTF8String(out);
  return out;
}

char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

std::string title_of(char32_t c) {
  icu::UnicodeString text(static_cast<UChar32>(c));
  return from_icu(text.toTitle(nullptr, icu::Locale::getRoot()));
}

bool has(char32_t c, UProperty property) { return u_hasBinaryProperty(static_cast<UChar32>(c), property); }
bool is_lower(char32_t c) { return has(c, UCHAR_LOWERCASE); }
bool is_upper(char32_t c) { return has(c, UCHAR_UPPERCASE); }
bool is_title(char32_t c) { return u_charType(static_cast<UChar32>(c)) == U_TITLECASE_LETTER; }
bool is_cased(char32_t c) { return is_lower(c) || is_upper(c) || is_title(c); }
bool is_alpha(char32_t c) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0; }
int numeric_type(char32_t c) { return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE); }
bool is_decimal(char32_t c) { return numeric_type(c) == U_NT_DECIMAL; }
bool is_digit(char32_t c) { return is_decimal(c) || numeric_type(c) == U_NT_DIGIT; }
bool is_numeric(char32_t c) { return numeric_type(c) != U_NT_NONE; }
bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }

template <class Predicate>
bool all_of(std::string_view text, Predicate predicate) {
  for (size_t at = 0; at < text.size();)
    if (!predicate(next_code_point(text, at))) return false;
  return true;
}

// islower and isupper: at least one cased letter, and none of the other case.
bool is_all(std::string_view text, bool lower) {
  bool cased = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_title(c) || (lower ? is_upper(c) : is_lower(c))) return false;
    cased = cased || (lower ? is_lower(c) : is_upper(c));
  }
  return cased;
}

bool is_titled(std::string_view text) {
  bool cased = false, previous_cased = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_upper(c) || is_title(c)) {
      if (previous_cased) return false;
      cased = previous_cased = true;
    } else if (is_lower(c)) {
      if (!previous_cased) return false;
      cased = true;
    } else {
      previous_cased = false;
    }
  }
  return cased;
}

bool is_identifier(std::string_view text) {
  size_t at = 0;
  const char32_t first = next_code_point(text, at);
  if (first != '_' && !has(first, UCHAR_XID_START)) return false;
  return all_of(text.substr(at), [](char32_t c) { return has(c, UCHAR_XID_CONTINUE); });
}

}  // namespace

int64_t count_code_points(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return ++at, lead;
  const int extra = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  char32_t c = lead & (0x3F >> extra);
  for (int i = 1; i <= extra; ++i) c = (c << 6) | (byte(at + static_cast<size_t>(i)) & 0x3F);
  at += static_cast<size_t>(extra) + 1;
  return c;
}

void append_code_point(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

size_t byte_offset(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) next_code_point(text, at);
  return std::min(at, text.size());
}

std::u32string decode(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) out += next_code_point(text, at);
  return out;
}

std::string encode(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) append_code_point(out, c);
  return out;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

bool is_word(char32_t c) { return c == '_' || is_alnum(c); }

bool is_line_break(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

std::string_view strip(std::string_view text, bool left, bool right) {
  if (left) {
    for (size_t at = 0; at < text.size();) {
      size_t next = at;
      if (!is_space(next_code_point(text, next))) break;
      text.remove_prefix(next);
    }
  }
  while (right && !text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    size_t at = start;
    if (!is_space(next_code_point(text, at))) break;
    text = text.substr(0, start);
  }
  return text;
}

std::string to_upper(std::string_view text) {
  if (!is_ascii(text)) return from_icu(to_icu(text).toUpper(icu::Locale::getRoot()));
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), ascii_upper);
  return out;
}

std::string to_lower(std::string_view text) {
  if (!is_ascii(text)) return from_icu(to_icu(text).toLower(icu::Locale::getRoot()));
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), ascii_lower);
  return out;
}

std::string case_fold(std::string_view text) { return from_icu(to_icu(text).foldCase()); }

std::string swap_case(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t c = next_code_point(text, at);
    const std::string_view one = text.substr(start, at - start);
    out += is_upper(c) ? to_lower(one) : is_lower(c) ? to_upper(one) : std::string(one);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  size_t at = 0;
  const char32_t first = next_code_point(text, at);
  return title_of(first) + to_lower(text.substr(at));
}

std::string title_case(std::string_view text) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t c = next_code_point(text, at);
    if (c < 0x80) {
      const char ascii = static_cast<char>(c);
      out += inside ? ascii_lower(ascii) : ascii_upper(ascii);
    } else {
      out += inside ? to_lower(text.substr(start, at - start)) : title_of(c);
    }
    inside = is_cased(c);
  }
  return out;
}

bool text_is(std::string_view predicate, std::string_view text) {
  if (predicate == "isascii") return is_ascii(text);
  if (predicate == "isprintable") return all_of(text, is_printable);
  if (text.empty()) return false;
  if (predicate == "isalpha") return all_of(text, is_alpha);
  if (predicate == "isalnum") return all_of(text, is_alnum);
  if (predicate == "isdigit") return all_of(text, is_digit);
  if (predicate == "isdecimal") return all_of(text, is_decimal);
  if (predicate == "isnumeric") return all_of(text, is_numeric);
  if (predicate == "isspace") return all_of(text, is_space);
  if (predicate == "islower") return is_all(text, true);
  if (predicate == "isupper") return is_all(text, false);
  if (predicate == "istitle") return is_titled(text);
  return is_identifier(text);  // isidentifier
}

size_t find_text(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  if (needle.size() == 1) return text.find(needle[0], from);
  // memmem is linear, unlike string_view::find, whose worst case is the product of the lengths.
  const void* at = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return at == nullptr ? std::string_view::npos
                       : static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

size_t rfind_text(std::string_view text, std::string_view needle) {
  if (needle.empty()) return text.size();
  // Searched forwards in the reversed text, for the sake of linear time.
  const std::string reversed(text.rbegin(), text.rend()), reversed_needle(needle.rbegin(), needle.rend());
  const size_t at = find_text(reversed, reversed_needle);
  return at == std::string_view::npos ? at : text.size() - at - needle.size();
}

std::string replace_text(std::string_view text, std::string_view from, std::string_view to, int64_t count,
                         int64_t max_bytes) {
  std::string out;
  size_t done = 0;
  const auto room = [&] { return static_cast<int64_t>(out.size()) <= max_bytes; };
  if (from.empty()) {  // before every code point and at the end
    for (size_t at = 0; count != 0 && room(); --count) {
      out += to;
      if (at >= text.size()) return out;
      next_code_point(text, at);
      out += text.substr(done, at - done);
      done = at;
    }
    return out += text.substr(done);
  }
  for (size_t at; count != 0 && room() && (at = find_text(text, from, done)) != std::string_view::npos;
       --count) {
    out += text.substr(done, at - done);
    out += to;
    done = at + from.size();
  }
  return out += text.substr(done);
}

}  // namespace atom::jinja
