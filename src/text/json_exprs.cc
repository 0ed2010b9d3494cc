// Strings, numbers and values of JSON as grammar expressions.
#include "text/json_exprs.h"

#include <algorithm>
#include <map>

#include "text/json_scanner.h"
#include "text/unicode.h"

namespace atom::text {
namespace {

constexpr int64_t kMaxIndent = 64;
// Of numbers: what readers hold in a double.
constexpr int64_t kMaxDigits = 64, kMaxExponentDigits = 2;

}  // namespace

JsonExprs::JsonExprs(GrammarBuilder& builder) : b_(builder) {
  const Expr indent = b_.concat({b_.literal("\n"), b_.repeat(b_.literal(" "), 0, kMaxIndent)});
  space_ = b_.call(b_.rule("space", b_.optional(b_.choice({b_.literal(" "), indent}))));

  const Expr raw = b_.code_points({{0x20, '!'}, {'#', '['}, {']', 0x10FFFF}});
  const auto hex_digit = [&](std::string_view digits) {
    ByteSet set;
    for (const char c : digits) set.set(static_cast<uint8_t>(c));
    return b_.bytes(set);
  };
  const Expr any_hex = hex_digit("0123456789abcdefABCDEF"), not_d = hex_digit("0123456789abcefABCEF"),
             low_hex = hex_digit("01234567"), high_hex = hex_digit("89abAB"),
             last_hex = hex_digit("cdefCDEF");
  // \uXXXX: no half of a surrogate pair stands alone.
  const Expr unit = b_.concat({not_d, any_hex, any_hex, any_hex});
  const Expr d_unit = b_.concat({hex_digit("dD"), low_hex, any_hex, any_hex});
  const Expr pair_unit = b_.concat({hex_digit("dD"), high_hex, any_hex, any_hex, b_.literal("\\u"),
                                    hex_digit("dD"), last_hex, any_hex, any_hex});
  const Expr escape = b_.concat(
      {b_.literal("\\"), b_.choice({hex_digit("\"\\/bfnrt"),
                                    b_.concat({b_.literal("u"), b_.choice({unit, d_unit, pair_unit})})})});
  character_ = b_.call(b_.rule("character", b_.choice({raw, escape})));
  // The characters are spelled out here, so that a string is one automaton.
  string_ = b_.call(b_.rule("string", quoted(b_.repeat(b_.choice({raw, escape}), 0))));

  const Expr digits = b_.repeat(digit('0', '9'), 0, kMaxDigits);
  const Expr whole = b_.concat(
      {b_.optional(b_.literal("-")), b_.choice({b_.literal("0"), b_.concat({digit('1', '9'), digits})})});
  const Expr fraction = b_.concat({b_.literal("."), b_.repeat(digit('0', '9'), 1)});
  const Expr exponent = b_.concat(
      {hex_digit("eE"), b_.optional(hex_digit("+-")), b_.repeat(digit('0', '9'), 1, kMaxExponentDigits)});
  integer_ = b_.call(b_.rule("integer", whole));
  number_ = b_.call(b_.rule("number", b_.concat({whole, b_.optional(fraction), b_.optional(exponent)})));
  boolean_ = b_.choice({b_.literal("true"), b_.literal("false")});
  null_ = b_.literal("null");

  const int value = b_.add_rule("value"), object = b_.add_rule("object"), array = b_.add_rule("array");
  value_ = b_.call(value);
  object_ = b_.call(object);
  array_ = b_.call(array);
  b_.define(value, b_.choice({object_, array_, string_, number_, boolean_, null_}));
  b_.define(object, list("{", pair(string_, value_), "}", 0, -1));
  b_.define(array, list("[", value_, "]", 0, -1));
}

JsonExprs::Expr JsonExprs::digit(char first, char last) const {
  return b_.code_points({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
}

JsonExprs::Expr JsonExprs::quoted(Expr inside) const {
  return b_.concat({b_.literal("\""), inside, b_.literal("\"")});
}

JsonExprs::Expr JsonExprs::pair(Expr key, Expr value) const {
  return b_.concat({key, b_.literal(":"), space_, value});
}

JsonExprs::Expr JsonExprs::list(std::string_view open, Expr item, std::string_view close, int64_t min,
                                int64_t max) const {
  const Expr next = b_.concat({b_.literal(","), space_, item});
  const Expr some = b_.concat(
      {space_, item, b_.repeat(next, std::max<int64_t>(min - 1, 0), max < 0 ? -1 : max - 1), space_});
  const Expr inside = max == 0 ? space_ : min == 0 ? b_.choice({some, space_}) : some;
  return b_.concat({b_.literal(open), inside, b_.literal(close)});
}

JsonExprs::Expr JsonExprs::characters(const CodePoints& ranges) const {
  CodePoints raw;
  std::vector<Expr> parts;
  for (const auto& [first, last] : ranges) {
    // What must be escaped is below 0x20, the quote and the backslash.
    for (char32_t c = first; c <= std::min<char32_t>(last, '\\'); ++c) {
      if (c >= 0x20 && c != '"' && c != '\\') {
        raw.emplace_back(c, c);
        continue;
      }
      const char byte = static_cast<char>(c);
      std::string escaped;
      append_json_escaped({&byte, 1}, escaped);
      parts.push_back(b_.literal(escaped));
    }
    if (last > '\\') raw.emplace_back(std::max<char32_t>(first, ']'), last);
  }
  if (!raw.empty()) parts.push_back(b_.code_points(normalize_code_points(raw)));
  return b_.choice(std::move(parts));
}

// A tree of the names' bytes; whatever leaves it goes on as any characters but escapes, which could spell a
// name.
JsonExprs::Expr JsonExprs::other_keys(const std::vector<std::string>& names) const {
  const CodePoints plain = {{0x20, '!'}, {'#', '['}, {']', 0x10FFFF}};
  const int rest = b_.rule("key", b_.repeat(b_.code_points(plain), 0));
  std::vector<std::u32string> sorted;
  for (const std::string& name : names) {
    std::u32string points;
    for (size_t at = 0; at < name.size();) points += read_utf8(name, at);
    sorted.push_back(std::move(points));
  }
  std::sort(sorted.begin(), sorted.end());
  // Keys that begin with the first `depth` characters of sorted[begin, end), seen from there on.
  const auto branch = [&](const auto& self, size_t begin, size_t end, size_t depth) -> Expr {
    if (b_.full()) return 0;
    const bool is_name = begin < end && sorted[begin].size() == depth;
    if (is_name) ++begin;
    while (begin < end && sorted[begin].size() == depth) ++begin;  // the same name again
    std::vector<Expr> parts;
    CodePoints taken = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    for (size_t at = begin; at < end;) {
      const char32_t c = sorted[at][depth];
      size_t next = at;
      while (next < end && sorted[next][depth] == c) ++next;
      taken.emplace_back(c, c);
      if (c >= 0x20 && c != '"' && c != '\\' && depth < kMaxGrammarDepth / 4) {
        parts.push_back(b_.concat({b_.code_points({{c, c}}), self(self, at, next, depth + 1)}));
      }
      at = next;
    }
    parts.push_back(b_.concat({b_.code_points(complement_code_points(taken)), b_.call(rest)}));
    if (!is_name) parts.push_back(b_.empty());
    return b_.choice(std::move(parts));
  };
  return quoted(branch(branch, 0, sorted.size(), 0));
}

// Numerals of the same length between two, digit by digit.
JsonExprs::Expr JsonExprs::digits_between(std::string_view low, std::string_view high) const {
  if (low.empty()) return b_.empty();
  const auto tail = low.size() - 1;
  const std::string zeros(tail, '0'), nines(tail, '9');
  if (low == std::string(1, low[0]) + zeros && high == std::string(1, high[0]) + nines) {
    const Expr any = b_.repeat(digit('0', '9'), static_cast<int64_t>(tail), static_cast<int64_t>(tail));
    return b_.concat({digit(low[0], high[0]), any});
  }
  if (low[0] == high[0])
    return b_.concat({digit(low[0], low[0]), digits_between(low.substr(1), high.substr(1))});
  std::vector<Expr> parts;
  parts.push_back(b_.concat({digit(low[0], low[0]), digits_between(low.substr(1), nines)}));
  if (low[0] + 1 < high[0]) {
    const Expr any = b_.repeat(digit('0', '9'), static_cast<int64_t>(tail), static_cast<int64_t>(tail));
    parts.push_back(b_.concat({digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)), any}));
  }
  parts.push_back(b_.concat({digit(high[0], high[0]), digits_between(zeros, high.substr(1))}));
  return b_.choice(std::move(parts));
}

// Numerals without a sign, 0 <= low.
JsonExprs::Expr JsonExprs::whole_between(int64_t low, std::optional<int64_t> high) const {
  if (high && *high < low) return b_.nothing();
  std::vector<Expr> parts;
  for (std::string from = std::to_string(low);;) {
    const std::string nines(from.size(), '9');
    if (high && std::to_string(*high).size() == from.size()) {
      parts.push_back(digits_between(from, std::to_string(*high)));
      break;
    }
    parts.push_back(digits_between(from, nines));
    from = "1" + std::string(from.size(), '0');
    if (!high && from.size() > std::to_string(low).size() + 1) {  // any longer numeral will do
      parts.back() =
          b_.concat({digit('1', '9'), b_.repeat(digit('0', '9'), static_cast<int64_t>(from.size()) - 2)});
      break;
    }
  }
  return b_.choice(std::move(parts));
}

namespace {

// -x without overflow.
std::optional<int64_t> negated(std::optional<int64_t> x) {
  return x ? std::optional(*x == INT64_MIN ? INT64_MAX : -*x) : std::nullopt;
}

}  // namespace

JsonExprs::Expr JsonExprs::integer_between(std::optional<int64_t> min, std::optional<int64_t> max) const {
  std::vector<Expr> parts;
  if (!max || *max >= 0) parts.push_back(whole_between(std::max<int64_t>(min.value_or(0), 0), max));
  if (!min || *min < 0) {
    const int64_t least = max && *max < 0 ? *negated(max) : 1;
    parts.push_back(b_.concat({b_.literal("-"), whole_between(least, negated(min))}));
  }
  return b_.choice(std::move(parts));
}

// Numerals without a sign and with an optional fraction; 0 <= low.
JsonExprs::Expr JsonExprs::fraction_between(int64_t low, bool low_open, std::optional<int64_t> high,
                                            bool high_open) const {
  const Expr zeros = b_.repeat(b_.literal("0"), 0), digits = b_.repeat(digit('0', '9'), 0);
  const Expr any = b_.optional(b_.concat({b_.literal("."), b_.repeat(digit('0', '9'), 1)}));
  const Expr positive = b_.concat({b_.literal("."), zeros, digit('1', '9'), digits});
  const Expr none = b_.optional(b_.concat({b_.literal("."), b_.repeat(b_.literal("0"), 1)}));
  const auto numeral = [&](int64_t whole) { return b_.literal(std::to_string(whole)); };
  std::vector<Expr> parts;
  if (high && *high < low) return b_.nothing();
  if (!high || *high > low) {
    parts.push_back(b_.concat({numeral(low), low_open ? positive : any}));
    if (!high || *high - 1 > low) {
      parts.push_back(
          b_.concat({whole_between(low + 1, high ? std::optional(*high - 1) : std::nullopt), any}));
    }
  }
  const bool low_is_high = high && *high == low;
  if (high && !high_open && !(low_is_high && low_open)) parts.push_back(b_.concat({numeral(*high), none}));
  return b_.choice(std::move(parts));
}

JsonExprs::Expr JsonExprs::number_between(std::optional<int64_t> min, bool min_open,
                                          std::optional<int64_t> max, bool max_open) const {
  std::vector<Expr> parts;
  if (!max || *max >= 0) {
    const bool from_min = min && *min >= 0;
    parts.push_back(fraction_between(from_min ? *min : 0, from_min && min_open, max, max_open));
  }
  if (!min || *min < 0) {
    const bool from_max = max && *max <= 0;
    // Zero with a sign is left out: it is covered without.
    parts.push_back(b_.concat({b_.literal("-"), fraction_between(from_max ? *negated(max) : 0,
                                                                 from_max ? max_open || *max == 0 : true,
                                                                 negated(min), min_open)}));
  }
  return b_.choice(std::move(parts));
}

}  // namespace atom::text
