// Oniguruma patterns rewritten for PCRE2.
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "text/unicode.h"
#include "text/unicode_regex.h"

namespace atom::text {

namespace {

constexpr int kMaxClassDepth = 16;

constexpr std::string_view kSpace =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// What \s, \w and \h mean in Oniguruma, as the inside of a PCRE2 class and as an ICU set.
struct Shorthand {
  char letter;
  std::string_view inside, inside_negated;  // empty: only the ICU set can say it
  const char* icu;
};
constexpr Shorthand kShorthands[] = {
    {'s', kSpace,
     R"(\x00-\x08\x0e-\x1f\x21-\x84\x86-\x9f\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
     R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})",
     R"([\p{White_Space}])"},
    {'w', R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})", "", R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}])"},
    {'d', R"(\p{Nd})", R"(\P{Nd})", R"([\p{Nd}])"},
    {'h', "0-9a-fA-F", "", "[0-9a-fA-F]"},
};

// [:name:] inside a class.
struct PosixClass {
  std::string_view name, inside;
};
constexpr PosixClass kPosixClasses[] = {
    {"alpha", R"(\p{Alphabetic})"}, {"digit", R"(\p{Nd})"}, {"lower", R"(\p{Lowercase})"},
    {"punct", R"(\p{P}\p{S})"},     {"space", kSpace},      {"upper", R"(\p{Uppercase})"},
    {"xdigit", "0-9a-fA-F"},
};

const Shorthand* shorthand(char letter) {
  for (const Shorthand& s : kShorthands) {
    if (s.letter == (letter | 0x20)) return &s;
  }
  return nullptr;
}
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  std::string run() {
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == '\\') {
        atom_ = out_.size();
        escape();
      } else if (c == '[') {
        atom_ = out_.size();
        character_class();
      } else if (c == '(') {
        open_group();
      } else if (c == ')') {
        if (groups_.empty()) fail("unmatched ')'");
        atom_ = groups_.back();
        groups_.pop_back();
        copy(1);
      } else if (c == '*' || c == '+' || c == '?') {
        copy(1);
        if (peek() == '+' || peek() == '?') copy(1);
      } else if (c == '{') {
        interval();
      } else {
        atom_ = out_.size();
        copy_character();
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(std::string_view why) const {
    throw invalid("{}: the pattern cannot be used: {} at byte {} of \"{}\"", where_, why, pos_,
                  in_.substr(0, 200));
  }
  char peek(size_t ahead = 0) const { return pos_ + ahead < in_.size() ? in_[pos_ + ahead] : '\0'; }
  void copy(size_t bytes) {
    out_.append(in_.substr(pos_, bytes));
    pos_ += bytes;
  }
  void copy_character() { copy(utf8_step(in_.substr(pos_)).size); }

  void escape() {
    const char c = peek(1);
    if (pos_ + 1 >= in_.size()) fail("it ends in a backslash");
    if (const Shorthand* s = shorthand(c); s != nullptr) {
      out_ += is_upper(c) ? "[^" : "[";
      out_ += s->inside;
      out_ += ']';
      pos_ += 2;
    } else if (c == 'u') {
      out_ += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(four_hex_digits()));
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'x') {
      copy(2);
      if (peek() == '{') copy(braced().size() + 2);
    } else if (c == 'Q' || c == 'E' || c == 'C' || c == 'N' || c == 'O') {
      fail("an escape that is not known here");
    } else {
      copy(1);
      copy_character();
    }
  }

  // What stands in the braces at pos_.
  std::string_view braced() const {
    const size_t close = in_.find('}', pos_);
    if (close == std::string_view::npos) fail("unclosed '{'");
    return in_.substr(pos_ + 1, close - pos_ - 1);
  }

  // \p{name}: PCRE2 knows general categories by their short names only, and takes a script's name to mean its
  // extensions as well.
  void property() {
    copy(2);
    if (peek() != '{') fail("\\p needs {name}");
    std::string_view name = braced();
    pos_ += name.size() + 2;
    const bool caret = name.starts_with('^');
    if (caret) name.remove_prefix(1);
    const std::string text(name);
    out_ += caret ? "{^" : "{";
    const int32_t category = u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, text.c_str());
    if (category != UCHAR_INVALID_CODE) {
      out_ += u_getPropertyValueName(UCHAR_GENERAL_CATEGORY_MASK, category, U_SHORT_PROPERTY_NAME);
    } else if (u_getPropertyValueEnum(UCHAR_SCRIPT, text.c_str()) != UCHAR_INVALID_CODE) {
      out_ += "sc:" + text;
    } else {
      out_ += text;
    }
    out_ += '}';
  }

  char32_t four_hex_digits() {
    char32_t value = 0;
    for (size_t i = 2; i < 6; ++i) {
      const char c = peek(i);
      const bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'f';
      if (!is_digit(c) && !letter) fail("\\u needs four hexadecimal digits");
      value = value * 16 + static_cast<char32_t>(letter ? (c | 0x20) - 'a' + 10 : c - '0');
    }
    if (value >= 0xD800 && value < 0xE000) fail("\\u names a surrogate");
    pos_ += 6;
    return value;
  }

  void open_group() {
    if (peek(1) == '*') fail("'(*' is not known here");
    groups_.push_back(out_.size());
    if (groups_.size() > 200) fail("groups are nested too deeply");
    copy(1);
    if (peek() != '?') return;
    copy(1);
    if (peek() == '#') fail("comments are not known here");
    // Flags: i and x mean the same in both; m (dot matches newline) and the rest do not.
    size_t flags = 0;
    while (peek(flags) == 'i' || peek(flags) == 'x' || peek(flags) == '-') ++flags;
    if (flags > 0 && (peek(flags) == ':' || peek(flags) == ')')) {
      if (peek(flags) == ')') groups_.pop_back();
      copy(flags + 1);
    } else if (peek() == ':' || peek() == '=' || peek() == '!' || peek() == '>' || peek() == '<') {
      copy(1);
    } else {
      fail("an unknown kind of group");
    }
  }

  // {n}, {n,}, {,n} or {n,m} behind an atom; any other brace is itself.
  void interval() {
    size_t i = pos_ + 1;
    const auto digits = [&] {
      const size_t begin = i;
      while (i < in_.size() && is_digit(in_[i])) ++i;
      return in_.substr(begin, i - begin);
    };
    const std::string_view low = digits();
    const bool comma = i < in_.size() && in_[i] == ',';
    if (comma) ++i;
    const std::string_view high = comma ? digits() : low;
    if (i >= in_.size() || in_[i] != '}' || (low.empty() && high.empty())) {
      atom_ = out_.size();
      out_ += "\\{";
      ++pos_;
      return;
    }
    pos_ = i + 1;
    out_ += fmt::format("{{{}{}{}}}", low.empty() ? "0" : low, comma ? "," : "", comma ? high : "");
    const bool repeated = peek() == '+' || (peek() == '?' && !comma);
    if (repeated) {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
    if (repeated || peek() == '?') copy(1);
  }

  void character_class() {
    const size_t begin = pos_;
    if (needs_algebra()) {
      pos_ = begin;
      const icu::UnicodeSet set = class_set(0);
      out_ += '[';
      if (set.isEmpty()) out_ += "^\\x{0}-\\x{10ffff}";
      for (int32_t i = 0; i < set.getRangeCount(); ++i) {
        out_ += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", set.getRangeStart(i), set.getRangeEnd(i));
      }
      out_ += ']';
      return;
    }
    pos_ = begin;
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') {
      out_ += "\\]";
      ++pos_;
    }
    while (peek() != ']') {
      if (peek() == '[') {
        posix_class();
      } else if (peek() == '\\') {
        class_escape();
      } else {
        copy_character();
      }
    }
    copy(1);
  }

  // Walks the class at pos_ and tells whether PCRE2 lacks something in it.
  bool needs_algebra() {
    bool algebra = false;
    int depth = 0;
    do {
      if (pos_ >= in_.size()) fail("unclosed '['");
      const char c = in_[pos_];
      if (c == '\\') {
        const Shorthand* s = shorthand(peek(1));
        algebra |= s != nullptr && is_upper(peek(1)) && s->inside_negated.empty();
        ++pos_;
        if (pos_ >= in_.size()) fail("unclosed '['");
      } else if (c == '[' && depth > 0 && peek(1) == ':' && in_.find(":]", pos_) != std::string_view::npos) {
        pos_ = in_.find(":]", pos_) + 1;
      } else if (c == '[') {
        algebra |= depth > 0;
        ++depth;
        if (peek(1) == '^') ++pos_;
        if (peek(1) == ']') ++pos_;  // a first ']' is itself
      } else if (c == ']') {
        --depth;
      } else if (c == '&' && peek(1) == '&') {
        algebra = true;
        ++pos_;
      }
      ++pos_;
    } while (depth > 0);
    return algebra;
  }

  void class_escape() {
    const char c = peek(1);
    const Shorthand* s = shorthand(c);
    if (s == nullptr) return escape();
    out_ += is_upper(c) ? s->inside_negated : s->inside;
    pos_ += 2;
  }

  void posix_class() {
    const size_t end = in_.find(":]", pos_);
    const std::string_view name = in_.substr(pos_ + 2, end - pos_ - 2);
    const auto* found = std::find_if(std::begin(kPosixClasses), std::end(kPosixClasses),
                                     [&](const PosixClass& posix) { return posix.name == name; });
    if (found == std::end(kPosixClasses)) fail("an unknown [:name:]");
    out_ += found->inside;
    pos_ = end + 2;
  }

  // The class at pos_ as a set; && binds weaker than listing.
  icu::UnicodeSet class_set(int depth) {
    if (depth > kMaxClassDepth) fail("classes are nested too deeply");
    ++pos_;
    const bool negated = peek() == '^';
    if (negated) ++pos_;
    icu::UnicodeSet all(0, 0x10FFFF), current;
    for (bool first = true; first || peek() != ']'; first = false) {
      if (pos_ >= in_.size()) fail("unclosed '['");
      if (peek() == '[' && peek(1) == ':') fail("[:name:] inside class algebra");
      if (peek() == '[') {
        current.addAll(class_set(depth + 1));
      } else if (peek() == '&' && peek(1) == '&') {
        all.retainAll(current);
        current.clear();
        pos_ += 2;
      } else if (!add_set_escape(current)) {
        const char32_t low = class_character();
        char32_t high = low;
        if (peek() == '-' && peek(1) != ']' && peek(1) != '[' && peek(1) != '\0') {
          ++pos_;
          high = class_character();
          if (high < low) fail("a range runs backwards");
        }
        current.add(static_cast<UChar32>(low), static_cast<UChar32>(high));
      }
    }
    ++pos_;
    all.retainAll(current);
    if (negated) all.complement();
    all.remove(0xD800, 0xDFFF);
    return all;
  }

  // \s and friends, \p{...}: adds the set and returns true.
  bool add_set_escape(icu::UnicodeSet& set) {
    if (peek() != '\\') return false;
    const char c = peek(1);
    std::string icu_pattern;
    if (const Shorthand* s = shorthand(c); s != nullptr) {
      icu_pattern = s->icu;
      pos_ += 2;
    } else if (c == 'p' || c == 'P') {
      const size_t close = in_.find('}', pos_);
      if (peek(2) != '{' || close == std::string_view::npos) fail("\\p needs {name}");
      std::string_view name = in_.substr(pos_ + 3, close - pos_ - 3);
      const bool caret = name.starts_with('^');
      if (caret) name.remove_prefix(1);
      icu_pattern = fmt::format("[\\p{{{}}}]", name);
      if (caret != (c == 'P')) icu_pattern.insert(1, "^");
      pos_ = close + 1;
    } else {
      return false;
    }
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet part(icu::UnicodeString::fromUTF8(icu_pattern), status);
    if (U_FAILURE(status)) fail("an unknown property");
    if (shorthand(c) != nullptr && is_upper(c)) part.complement();
    set.addAll(part);
    return true;
  }

  // One literal or escaped character of a class.
  char32_t class_character() {
    if (peek() != '\\') return read_utf8(in_, pos_);
    const char c = peek(1);
    if (c == 'u') return four_hex_digits();
    if (c == 'x' && peek(2) == '{') {
      const size_t close = in_.find('}', pos_);
      char32_t value = 0;
      for (size_t i = pos_ + 3; i < close; ++i) {
        const char digit = peek(i - pos_);
        const bool letter = (digit | 0x20) >= 'a' && (digit | 0x20) <= 'f';
        if ((!is_digit(digit) && !letter) || value > 0x10FFFF) fail("bad \\x{...}");
        value = value * 16 + static_cast<char32_t>(letter ? (digit | 0x20) - 'a' + 10 : digit - '0');
      }
      if (value > 0x10FFFF) fail("bad \\x{...}");
      pos_ = close + 1;
      return value;
    }
    pos_ += 1;
    switch (c) {
      case 't':
        ++pos_;
        return '\t';
      case 'n':
        ++pos_;
        return '\n';
      case 'v':
        ++pos_;
        return '\v';
      case 'f':
        ++pos_;
        return '\f';
      case 'r':
        ++pos_;
        return '\r';
      case '\0':
        fail("unclosed '['");
      default:
        break;
    }
    if (is_digit(c) || is_upper(c) || (c >= 'a' && c <= 'z'))
      fail("an escape that is not known in class algebra");
    return read_utf8(in_, pos_);
  }

  std::string_view in_, where_;
  std::string out_;
  size_t pos_ = 0;
  size_t atom_ = 0;             // where the last atom begins in out_
  std::vector<size_t> groups_;  // where the open groups begin in out_
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

}  // namespace atom::text
