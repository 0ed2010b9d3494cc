// A recursive-descent parser of grammars.
#include "text/ebnf_grammar.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/text_util.h"
#include "text/regex_grammar.h"
#include "text/unicode.h"

namespace atom::text {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr int kMaxDepth = 100;
constexpr int64_t kMaxRepeat = 100'000;
constexpr size_t kMaxSource = 1 << 20;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

class EbnfParser {
 public:
  EbnfParser(GrammarBuilder& builder, std::string_view source) : text_(source), b_(builder) {}

  Result<Expr> run() {
    if (text_.size() > kMaxSource) return invalid("grammar: longer than {} bytes", kMaxSource);
    if (!is_valid_utf8(text_)) return invalid("grammar: not UTF-8");
    for (skip(); !done(); skip()) read_rule();
    if (error_) return *error_;
    for (const char* root : {"root", "start"}) {
      if (const auto it = rules_.find(root); it != rules_.end()) return b_.call(it->second);
    }
    return invalid("grammar: there is no rule \"root\" or \"start\"");
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
    if (!error_) {
      const auto line =
          1 + std::count(text_.begin(),
                         text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size())), '\n');
      error_ = invalid("grammar: line {}: {}", line, what);
    }
    return 0;
  }

  // White space, line breaks and comments.
  void skip() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '#' || (c == '/' && peek(1) == '/')) {
        at_ = std::min(text_.find('\n', at_), text_.size() - 1);
      } else if (c != ' ' && c != '\t' && c != '\r' && c != '\n') {
        return;
      }
    }
  }

  std::string name() {
    const size_t begin = at_;
    if (peek() == '?' || peek() == '!') ++at_;  // Lark's hints for its tree
    const size_t from = at_;
    while (is_name_char(peek())) ++at_;
    if (at_ == from) {
      at_ = begin;
      fail("a rule's name is expected");
    }
    return std::string(text_.substr(from, at_ - from));
  }

  // True if a name and a definition sign stand here: the rule before has ended.
  bool at_rule() {
    const size_t begin = at_;
    if (peek() == '?' || peek() == '!') ++at_;
    const size_t from = at_;
    while (is_name_char(peek())) ++at_;
    bool found = at_ > from;
    skip();
    found = found && (peek() == ':' || peek() == '.' || peek() == '{');
    if (found && peek() == '.') found = peek(1) >= '0' && peek(1) <= '9';  // name.2: a priority
    if (found && peek() == '{') found = !(peek(1) >= '0' && peek(1) <= '9') && peek(1) != ',';  // a template
    at_ = begin;
    return found;
  }

  int rule_of(const std::string& rule_name) {
    const auto [it, added] = rules_.try_emplace(rule_name, 0);
    if (added) it->second = b_.add_rule(rule_name);
    return it->second;
  }

  void read_rule() {
    if (peek() == '%') {
      fail("directives (%import, %ignore and so on) are not supported");
      return;
    }
    const std::string rule_name = name();
    skip();
    if (peek() == '.') fail("priorities are not supported");
    if (peek() == '{') fail("templates are not supported");
    if (!take("::=") && !take(":")) fail(fmt::format("\"::=\" is expected behind \"{}\"", rule_name));
    if (error_) return;
    const int rule = rule_of(rule_name);
    if (!defined_.emplace(rule, true).second) {
      fail(fmt::format("rule \"{}\" is defined twice", rule_name));
      return;
    }
    b_.define(rule, alternatives(0));
    if (!done() && !at_rule() && peek() != '%') fail(fmt::format("unexpected \"{}\"", peek()));
  }

  Expr alternatives(int depth) {
    if (depth > kMaxDepth) return fail("nested too deeply");
    std::vector<Expr> all;
    do {
      all.push_back(sequence(depth));
      skip();
    } while (take("|"));
    return b_.choice(std::move(all));
  }

  Expr sequence(int depth) {
    if (b_.full()) return fail("too large from here on");
    std::vector<Expr> parts;
    for (skip(); !done() && peek() != '|' && peek() != ')' && peek() != '%' && !at_rule(); skip()) {
      if (take("->")) return fail("aliases (->) are not supported");
      if (b_.full()) return fail("too large from here on");
      const Expr part = atom(depth);
      if (error_) return 0;
      parts.push_back(repeated(part));
    }
    return b_.concat(std::move(parts));
  }

  Expr repeated(Expr part) {
    for (bool again = true; again && !error_;) {
      if (take("*")) {
        part = b_.repeat(part, 0);
      } else if (take("+")) {
        part = b_.repeat(part, 1);
      } else if (take("?")) {
        part = b_.optional(part);
      } else if (peek() == '{') {
        ++at_;
        const int64_t min = number();
        int64_t max = min;
        skip();
        if (take(",")) {
          skip();
          max = peek() == '}' ? -1 : number();
          skip();
        }
        if (!take("}")) return fail("\"}\" is missing");
        if (max >= 0 && max < min) return fail("the counts in braces are in the wrong order");
        part = b_.repeat(part, min, max);
      } else {
        again = false;
      }
    }
    return part;
  }

  int64_t number() {
    skip();
    int64_t value = 0;
    const size_t begin = at_;
    while (peek() >= '0' && peek() <= '9' && value <= kMaxRepeat) value = value * 10 + (text_[at_++] - '0');
    if (at_ == begin) fail("a number is expected");
    if (value > kMaxRepeat) fail("a count is too large");
    return value;
  }

  Expr atom(int depth) {
    switch (peek()) {
      case '(': {
        ++at_;
        const Expr inner = alternatives(depth + 1);
        return take(")") ? inner : fail("\")\" is missing");
      }
      case '"':
        return literal();
      case '[': {  // as in a regular expression
        const size_t end = class_end();
        if (end == 0) return fail("\"]\" is missing");
        return regex(end, 0);
      }
      case '/': {
        size_t end = at_ + 1;
        bool in_class = false;
        for (; end < text_.size() && text_[end] != '\n' && (text_[end] != '/' || in_class); ++end) {
          if (text_[end] == '\\')
            ++end;
          else if (text_[end] == '[')
            in_class = true;
          else if (text_[end] == ']')
            in_class = false;
        }
        if (end >= text_.size() || text_[end] != '/') return fail("\"/\" is missing");
        const Expr e = regex(end + 1, 1);
        if (peek() >= 'a' && peek() <= 'z') return fail("flags of regular expressions are not supported");
        return e;
      }
      case '.':
        ++at_;
        return b_.code_points({{0, 0x10FFFF}});
      default: {
        if (!is_name_char(peek())) return fail(fmt::format("unexpected \"{}\"", peek()));
        return b_.call(rule_of(name()));
      }
    }
  }

  // Behind the bracket that closes the class here; 0 if there is none.
  size_t class_end() const {
    for (size_t i = at_ + 1; i < text_.size() && text_[i] != '\n'; ++i) {
      if (text_[i] == '\\') {
        ++i;
      } else if (text_[i] == ']' && i > at_ + 1 && !(i == at_ + 2 && text_[at_ + 1] == '^')) {
        return i + 1;
      }
    }
    return 0;
  }

  // The text up to `end`, without `border` bytes at both sides, as a regular expression.
  Expr regex(size_t end, size_t border) {
    const std::string_view pattern = text_.substr(at_ + border, end - at_ - 2 * border);
    const Result<Expr> e = regex_expr(b_, pattern);
    if (!e.ok()) return fail(e.error().message());
    at_ = end;
    return e.value();
  }

  Expr literal() {
    ++at_;
    std::string value;
    while (!done() && peek() != '"') {
      if (peek() == '\n') return fail("a literal ends with its line");
      if (peek() != '\\') {
        value += text_[at_++];
        continue;
      }
      ++at_;
      const char c = peek();
      ++at_;
      if (c == 'n')
        value += '\n';
      else if (c == 'r')
        value += '\r';
      else if (c == 't')
        value += '\t';
      else if (c == 'x')
        hex(2, value);
      else if (c == 'u')
        hex(4, value);
      else if (c == 'U')
        hex(8, value);
      else if (c == '"' || c == '\\' || c == '/' || c == '[' || c == ']' || c == '\'')
        value += c;
      else
        return fail("this escape is not supported");
    }
    if (!take("\"")) return fail("a literal's end is missing");
    if (take("i")) return fail("flags of literals are not supported");
    return b_.literal(value);
  }

  void hex(int digits, std::string& out) {
    uint64_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) {
        fail("hexadecimal digits are expected");
        return;
      }
      value = value * 16 + static_cast<uint64_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      fail("this is no character's code");
    } else {
      append_utf8(static_cast<char32_t>(value), out);
    }
  }

  const std::string_view text_;
  GrammarBuilder& b_;
  std::map<std::string, int> rules_;
  std::map<int, bool> defined_;
  size_t at_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<std::shared_ptr<const Grammar>> ebnf_grammar(std::string_view source) {
  GrammarBuilder builder;
  const Result<Expr> root = ebnf_expr(builder, source);
  if (!root.ok()) return root.error();
  return builder.compile(builder.rule("root", root.value()));
}

Result<Expr> ebnf_expr(GrammarBuilder& builder, std::string_view source) {
  return EbnfParser(builder, source).run();
}

}  // namespace atom::text
