// A recursive-descent parser of regular expressions.
#include "text/regex_grammar.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text_util.h"
#include "text/unicode.h"

namespace atom::text {

CodePoints normalize_code_points(CodePoints ranges) {
  std::sort(ranges.begin(), ranges.end());
  CodePoints out;
  for (const auto& [first, last] : ranges) {
    if (!out.empty() && first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, last);
    } else {
      out.emplace_back(first, last);
    }
  }
  return out;
}

CodePoints complement_code_points(const CodePoints& ranges) {
  CodePoints out;
  char32_t next = 0;
  for (const auto& [first, last] : normalize_code_points(ranges)) {
    if (first > next) out.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= 0x10FFFF) out.emplace_back(next, 0x10FFFF);
  return out;
}

namespace {

using Expr = GrammarBuilder::Expr;

constexpr int kMaxDepth = 100;
constexpr int64_t kMaxRepeat = 100'000;
constexpr size_t kMaxPattern = 1 << 20;

const CodePoints kDigits = {{'0', '9'}};
const CodePoints kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kSpaces = {{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}, {0x2028, 0x2029}, {0xFEFF, 0xFEFF}};
const CodePoints kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class RegexParser {
 public:
  RegexParser(GrammarBuilder& builder, std::string_view pattern, const RegexOptions& options)
      : b_(builder), text_(pattern), options_(options) {}

  Result<Expr> run() {
    if (text_.size() > kMaxPattern) return invalid("regex: longer than {} bytes", kMaxPattern);
    if (!is_valid_utf8(text_)) return invalid("regex: not UTF-8");
    const Expr e = alternatives(0, /*top=*/true);
    if (!error_ && at_ < text_.size()) fail("\")\" without \"(\"");
    if (error_) return *error_;
    return e;
  }

 private:
  bool done() const { return error_.has_value() || at_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(std::string_view token) {
    if (error_ || !text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  Expr fail(std::string_view what) {
    if (!error_) error_ = invalid("regex: byte {}: {}", at_, what);
    return 0;
  }
  Expr set(const CodePoints& ranges) {
    return options_.characters ? options_.characters(ranges) : b_.code_points(ranges);
  }
  Expr anything() { return b_.repeat(set({{0, 0x10FFFF}}), 0); }

  Expr alternatives(int depth, bool top) {
    if (depth > kMaxDepth) return fail("nested too deeply");
    std::vector<Expr> all;
    do {
      all.push_back(sequence(depth, top));
    } while (take("|"));
    return b_.choice(std::move(all));
  }

  // Anchors may stand at the ends of the whole pattern's alternatives only; elsewhere nothing could match.
  Expr sequence(int depth, bool top) {
    if (b_.full()) return fail("too large from here on");
    std::vector<Expr> parts;
    const bool from_start = top && take("^");
    if (top && options_.search && !from_start) parts.push_back(anything());
    bool to_end = false;
    while (!done() && peek() != '|' && peek() != ')') {
      if (top && take("$")) {
        to_end = true;
        if (!done() && peek() != '|') return fail("\"$\" before the end of the pattern");
        break;
      }
      parts.push_back(quantified(depth));
    }
    if (top && options_.search && !to_end) parts.push_back(anything());
    return b_.concat(std::move(parts));
  }

  Expr quantified(int depth) {
    if (b_.full()) return fail("too large from here on");
    const Expr part = atom(depth);
    if (error_) return 0;
    int64_t min = 1, max = 1;
    if (take("*")) {
      min = 0, max = -1;
    } else if (take("+")) {
      max = -1;
    } else if (take("?")) {
      min = 0;
    } else if (peek() == '{') {
      ++at_;
      const std::optional<int64_t> low = number();
      if (!low) return fail("a number is expected behind \"{\"; write \\{ for the character");
      min = max = *low;
      if (take(",")) max = peek() == '}' ? -1 : number().value_or(-2);
      if (!take("}") || max == -2) return fail("\"}\" is missing");
      if (max >= 0 && max < min) return fail("the counts in braces are in the wrong order");
      if (std::max(min, max) > kMaxRepeat) return fail("a count is too large");
    } else {
      return part;
    }
    take("?");
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
      return fail("two quantifiers in a row");
    return b_.repeat(part, min, max);
  }

  std::optional<int64_t> number() {
    int64_t value = 0;
    const size_t begin = at_;
    while (peek() >= '0' && peek() <= '9' && value <= kMaxRepeat) value = value * 10 + (text_[at_++] - '0');
    if (at_ == begin) return std::nullopt;
    return value;
  }

  Expr atom(int depth) {
    switch (peek()) {
      case '(': {
        ++at_;
        if (take("?")) {
          if (peek() == 'P' || (peek() == '<' && peek(1) != '=' && peek(1) != '!')) {
            take("P");
            const size_t end = text_.find('>', at_);
            if (peek() != '<' || end == std::string_view::npos) return fail("a group's name is expected");
            at_ = end + 1;
          } else if (!take(":")) {
            return fail("look-around and flags are not supported");
          }
        }
        const Expr inner = alternatives(depth + 1, false);
        if (!take(")")) return fail("\")\" is missing");
        return inner;
      }
      case '[':
        return char_class();
      case '.':
        ++at_;
        return set(complement_code_points(kLineEnds));
      case '\\': {
        CodePoints ranges;
        escape(ranges, false);
        return error_ ? 0 : set(ranges);
      }
      case '^':
      case '$':
        return fail("an anchor within the pattern is not supported");
      case '*':
      case '+':
      case '?':
        return fail("nothing to repeat");
      default: {
        const char32_t c = read_utf8(text_, at_);
        return set({{c, c}});
      }
    }
  }

  // [...] with the bracket at the front.
  Expr char_class() {
    ++at_;
    const bool negated = take("^");
    CodePoints ranges;
    for (bool first = true; first || peek() != ']'; first = false) {
      if (done()) return fail("\"]\" is missing");
      if (first && peek() == ']') break;  // [] matches nothing, [^] anything
      if (text_.substr(at_).starts_with("[:")) return fail("named classes are not supported");
      CodePoints low;
      member(low);
      if (error_) return 0;
      const bool single = low.size() == 1 && low[0].first == low[0].second;
      if (single && peek() == '-' && peek(1) != ']' && peek(1) != '\0') {
        ++at_;
        CodePoints high;
        member(high);
        if (error_) return 0;
        if (high.size() != 1 || high[0].first != high[0].second)
          return fail("a range must end with a character");
        if (high[0].first < low[0].first) return fail("a range is in the wrong order");
        low[0].second = high[0].first;
      }
      ranges.insert(ranges.end(), low.begin(), low.end());
      if (static_cast<int64_t>(ranges.size()) > kMaxRepeat) return fail("a class is too large");
    }
    ++at_;
    return set(negated ? complement_code_points(ranges) : normalize_code_points(ranges));
  }

  void member(CodePoints& out) {
    if (peek() == '\\') return escape(out, true);
    const char32_t c = read_utf8(text_, at_);
    out.emplace_back(c, c);
  }

  void escape(CodePoints& out, bool in_class) {
    ++at_;
    if (done()) {
      fail("the pattern ends with a backslash");
      return;
    }
    const char32_t c = read_utf8(text_, at_);
    const auto one = [&](char32_t value) { out.emplace_back(value, value); };
    switch (c) {
      case 'd':
        out = kDigits;
        return;
      case 'D':
        out = complement_code_points(kDigits);
        return;
      case 'w':
        out = kWord;
        return;
      case 'W':
        out = complement_code_points(kWord);
        return;
      case 's':
        out = kSpaces;
        return;
      case 'S':
        out = complement_code_points(kSpaces);
        return;
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x':
        return hex(2, out);
      case 'u':
        if (take("{")) {
          hex(-1, out);
          if (!take("}")) fail("\"}\" is missing");
          return;
        }
        return hex(4, out);
      case 'b':
        if (in_class) return one('\b');
        [[fallthrough]];
      default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
          fail("this escape is not supported");
          return;
        }
        one(c);
    }
  }

  // `digits` hexadecimal digits, or as many as there are (-1).
  void hex(int digits, CodePoints& out) {
    char32_t value = 0;
    int count = 0;
    for (; count != digits && count < 8; ++count, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (count == 0 || (digits > 0 && count != digits)) {
      fail("hexadecimal digits are expected");
    } else if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      fail("this is no character's code");
    } else {
      out.emplace_back(value, value);
    }
  }

  GrammarBuilder& b_;
  const std::string_view text_;
  const RegexOptions& options_;
  size_t at_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<GrammarBuilder::Expr> regex_expr(GrammarBuilder& builder, std::string_view pattern,
                                        const RegexOptions& options) {
  return RegexParser(builder, pattern, options).run();
}

}  // namespace atom::text
