// The lexer: one pass over the source, alternating between text and tags.
#include "text/jinja_lexer.h"

#include <algorithm>
#include <cctype>

#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace atom::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// All line ends become \n, and one at the end is dropped.
std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_lines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text();
    push(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  // ---- text ----

  void read_text() {
    const size_t start = at_;
    size_t tag = start;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push_data(std::string_view(source_).substr(start));
        return move_to(source_.size());
      }
      if (const char kind = source_[tag + 1]; kind == '%' || kind == '{' || kind == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    push_data(trimmed(start, tag, sign, kind != '{'));
    move_to(tag);
    if (kind == '%' && read_raw(sign)) return;
    move_to(tag + (sign == 0 ? 2 : 3));
    if (kind == '#') return skip_comment(tag);
    push(kind == '%' ? TokenKind::block_begin : TokenKind::print_begin, "");
    read_tag(kind == '%');
  }

  // The text [start, tag) as the tag behind it leaves it.
  std::string_view trimmed(size_t start, size_t tag, char sign, bool lstrip) const {
    const std::string_view text = std::string_view(source_).substr(start, tag - start);
    if (sign == '-') return strip(text, false, true);
    if (sign == '+' || !lstrip) return text;
    const size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_starting_) return text;
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    return strip(text.substr(line), true, true).empty() ? text.substr(0, line) : text;
  }

  void skip_comment(size_t begin) {
    const int line = line_;
    const size_t body = at_;
    const size_t close = source_.find("#}", body);
    if (close == std::string::npos) fail("line {}: missing end of comment tag", line);
    const char sign = close > body ? source_[close - 1] : '\0';
    finish_tag(close + 2, sign, true, begin);
  }

  // {% raw %} text {% endraw %}, if that stands here.
  bool read_raw(char sign) {
    size_t at = skip_space(at_ + (sign == 0 ? 2 : 3));
    if (source_.compare(at, 3, "raw") != 0) return false;
    at = skip_space(at + 3);
    const char end_sign = at < source_.size() && source_[at] == '-' ? '-' : '\0';
    if (end_sign != 0) ++at;
    if (source_.compare(at, 2, "%}") != 0) return false;
    const int line = line_;
    finish_tag(at + 2, end_sign, false, at_);
    const size_t body = at_;
    for (size_t tag = body; (tag = source_.find("{%", tag)) != std::string::npos; tag += 2) {
      const char open = sign_at(tag + 2);
      size_t end = skip_space(tag + (open == 0 ? 2 : 3));
      if (source_.compare(end, 6, "endraw") != 0) continue;
      end = skip_space(end + 6);
      const char close = sign_at(end);
      if (close != 0) ++end;
      if (source_.compare(end, 2, "%}") != 0) continue;
      push_data(trimmed(body, tag, open, true));
      finish_tag(end + 2, close, true, body);
      return true;
    }
    fail("line {}: missing end of raw directive", line);
  }

  // Moves behind a tag that ends at `end`, and behind the white space that its closing sign or trim_blocks
  // removes.
  void finish_tag(size_t end, char sign, bool trim_newline, size_t begin) {
    if (sign == '-') {
      end = skip_space(end);
    } else if (trim_newline && sign != '+' && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    line_starting_ = end > begin && source_[end - 1] == '\n';
    move_to(end);
  }

  // ---- tags ----

  void read_tag(bool block) {
    const size_t begin = at_;
    const int line = line_;
    std::string open;  // the closing brackets that are due, innermost last
    while (at_ < source_.size()) {
      if (open.empty() && read_tag_end(block, begin)) return;
      const char c = source_[at_];
      size_t next = at_;
      if (is_space(next_code_point(source_, next))) {
        move_to(next);
      } else if (is_digit(c)) {
        read_number();
      } else if (c == '"' || c == '\'') {
        read_string(c);
      } else if (!read_name()) {
        read_operator(open);
      }
    }
    fail("line {}: unexpected end of template inside a tag", line);
  }

  bool read_tag_end(bool block, size_t begin) {
    const std::string_view close = block ? "%}" : "}}";
    const char sign = source_[at_] == '-' || (block && source_[at_] == '+') ? source_[at_] : '\0';
    if (source_.compare(at_ + (sign != 0), 2, close) != 0) return false;
    push(block ? TokenKind::block_end : TokenKind::print_end, "");
    finish_tag(at_ + (sign != 0) + 2, sign, block, begin);
    return true;
  }

  // Digits with single underscores between them; where they end.
  template <class IsDigit>
  size_t digits_end(size_t at, IsDigit is) const {
    while (at < source_.size() &&
           (is(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() && is(source_[at + 1]) &&
                                at > 0 && source_[at - 1] != '_')))
      ++at;
    return at;
  }

  void read_number() {
    const size_t start = at_;
    const auto peek = [&](size_t at) { return at < source_.size() ? source_[at] : '\0'; };
    const char radix = static_cast<char>(std::tolower(static_cast<unsigned char>(peek(start + 1))));
    if (source_[start] == '0' && (radix == 'x' || radix == 'o' || radix == 'b')) {
      const size_t first = start + 2 + (peek(start + 2) == '_');
      const size_t end = digits_end(first, [radix](char c) {
        return radix == 'x' ? std::isxdigit(static_cast<unsigned char>(c)) != 0
                            : c >= '0' && c < (radix == 'o' ? '8' : '2');
      });
      if (end > first) return push_number(TokenKind::integer, start, end);
    }
    size_t end = digits_end(start, is_digit);
    bool real = false;
    // After a dot the digits are an index, as in x.0.1.
    const bool may_be_real = start == 0 || source_[start - 1] != '.';
    if (may_be_real && peek(end) == '.' && is_digit(peek(end + 1))) {
      end = digits_end(end + 1, is_digit);
      real = true;
    }
    if (may_be_real && (peek(end) == 'e' || peek(end) == 'E')) {
      const size_t exponent = end + 1 + (peek(end + 1) == '+' || peek(end + 1) == '-');
      if (is_digit(peek(exponent))) {
        end = digits_end(exponent, is_digit);
        real = true;
      }
    }
    if (!real && source_[start] == '0') {  // 012 is no integer: 0 stands alone
      end = digits_end(start, [](char c) { return c == '0'; });
    }
    push_number(real ? TokenKind::real : TokenKind::integer, start, end);
  }

  void push_number(TokenKind kind, size_t start, size_t end) {
    std::string text = source_.substr(start, end - start);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    push(kind, std::move(text));
    move_to(end);
  }

  bool read_name() {
    size_t end = at_;
    while (end < source_.size()) {
      size_t next = end;
      if (!is_word(next_code_point(source_, next))) break;
      end = next;
    }
    if (end == at_) return false;
    std::string name = source_.substr(at_, end - at_);
    if (!text_is("isidentifier", name)) fail("line {}: invalid character in the name '{}'", line_, name);
    push(TokenKind::name, std::move(name));
    move_to(end);
    return true;
  }

  void read_operator(std::string& open) {
    for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="}) {
      if (source_.compare(at_, 2, two) != 0) continue;
      push(TokenKind::op, std::string(two));
      return move_to(at_ + 2);
    }
    const char c = source_[at_];
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      size_t next = at_;
      next_code_point(source_, next);
      fail("line {}: unexpected character '{}'", line_, source_.substr(at_, next - at_));
    }
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail("line {}: unexpected '{}'", line_, c);
      if (open.back() != c) fail("line {}: unexpected '{}', expected '{}'", line_, c, open.back());
      open.pop_back();
    }
    push(TokenKind::op, std::string(1, c));
    move_to(at_ + 1);
  }

  // ---- strings ----

  void read_string(char mark) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != mark) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("line {}: a string does not end", line_);
    push(TokenKind::string, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    move_to(end + 1);
  }

  // Python's escapes; an unknown one stays as it is.
  std::string unescape(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      if (text[at] != '\\') {
        out += text[at++];
        continue;
      }
      ++at;
      const char c = text[at++];
      switch (c) {
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          out += c;
          break;
        case 'a':
          out += '\a';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'n':
          out += '\n';
          break;
        case 'r':
          out += '\r';
          break;
        case 't':
          out += '\t';
          break;
        case 'v':
          out += '\v';
          break;
        case 'x':
          append_escape(out, text, at, 2, 16);
          break;
        case 'u':
          append_escape(out, text, at, 4, 16);
          break;
        case 'U':
          append_escape(out, text, at, 8, 16);
          break;
        case 'N':
          fail("line {}: the escape \\N{{...}} is not supported", line_);
        default:
          if (c >= '0' && c <= '7') {
            --at;
            size_t count = 1;
            while (count < 3 && at + count < text.size() && text[at + count] >= '0' &&
                   text[at + count] <= '7')
              ++count;
            append_escape(out, text, at, count, 8);
          } else {
            out += '\\';
            --at;
          }
      }
    }
    return out;
  }

  void append_escape(std::string& out, std::string_view text, size_t& at, size_t count, int base) const {
    char32_t c = 0;
    for (size_t i = 0; i < count; ++i, ++at) {
      const char digit = at < text.size() ? text[at] : '\0';
      if (!std::isxdigit(static_cast<unsigned char>(digit)))
        fail("line {}: truncated escape in a string", line_);
      c = c * static_cast<char32_t>(base) +
          static_cast<char32_t>(is_digit(digit) ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
      fail("line {}: an escape in a string is no character", line_);
    append_code_point(out, c);
  }

  // ---- places ----

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      size_t next = at;
      if (!is_space(next_code_point(source_, next))) break;
      at = next;
    }
    return std::min(at, source_.size());
  }

  void move_to(size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at), '\n'));
    at_ = at;
  }

  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void push_data(std::string_view text) {
    if (!text.empty()) push(TokenKind::data, std::string(text));
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended with a line break
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace atom::jinja
