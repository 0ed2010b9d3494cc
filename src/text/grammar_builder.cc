// Expressions of a grammar, and characters as bytes.
#include <algorithm>
#include <array>

#include "text/grammar.h"
#include "text/unicode.h"

namespace atom::text {

GrammarBuilder::Expr GrammarBuilder::add(Node node, std::span<const Expr> parts) {
  const auto total = static_cast<int64_t>(nodes_.size() + parts_.size() + parts.size());
  full_ = full_ || total > kMaxGrammarNodes;
  if (full_) return 0;
  node.begin = static_cast<int32_t>(parts_.size());
  for (const Expr part : parts)
    node.depth = std::max(node.depth, nodes_[static_cast<size_t>(part)].depth + 1);
  parts_.insert(parts_.end(), parts.begin(), parts.end());
  node.end = static_cast<int32_t>(parts_.size());
  nodes_.push_back(node);
  return static_cast<Expr>(nodes_.size() - 1);
}

GrammarBuilder::Expr GrammarBuilder::bytes(ByteSet set) {
  if (full_) return 0;
  sets_.push_back(set);
  return add({.kind = Kind::bytes, .value = static_cast<int32_t>(sets_.size() - 1)}, {});
}

GrammarBuilder::Expr GrammarBuilder::literal(std::string_view text) {
  std::vector<Expr> parts;
  for (const char c : text) {
    if (full_) return 0;
    parts.push_back(bytes(ByteSet().set(static_cast<uint8_t>(c))));
  }
  return concat(std::move(parts));
}

GrammarBuilder::Expr GrammarBuilder::concat(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = Kind::concat}, parts);
}

GrammarBuilder::Expr GrammarBuilder::choice(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = Kind::choice}, parts);
}

GrammarBuilder::Expr GrammarBuilder::repeat(Expr part, int64_t min, int64_t max) {
  return add({.kind = Kind::repeat, .min = min, .max = max}, {&part, 1});
}

GrammarBuilder::Expr GrammarBuilder::call(int rule) { return add({.kind = Kind::call, .value = rule}, {}); }

int GrammarBuilder::add_rule(std::string name) {
  rules_.emplace_back(std::move(name), -1);
  return static_cast<int>(rules_.size() - 1);
}

void GrammarBuilder::define(int rule, Expr body) { rules_[static_cast<size_t>(rule)].second = body; }

int GrammarBuilder::rule(std::string name, Expr body) {
  const int rule = add_rule(std::move(name));
  define(rule, body);
  return rule;
}

namespace {

ByteSet byte_range(int first, int last) {
  ByteSet set;
  for (int b = first; b <= last; ++b) set.set(static_cast<size_t>(b));
  return set;
}

// Splits [first, last], whose encodings have `size` bytes, into products of byte ranges.
void utf8_products(char32_t first, char32_t last, int size, std::vector<std::vector<ByteSet>>& out) {
  // The lowest position at which the two differ decides where to cut so that lower bytes are full ranges.
  for (int low = 1; low < size; ++low) {
    const char32_t mask = (char32_t{1} << (6 * low)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      utf8_products(first, first | mask, size, out);
      utf8_products((first | mask) + 1, last, size, out);
      return;
    }
    if ((last & mask) != mask) {
      utf8_products(first, (last & ~mask) - 1, size, out);
      utf8_products(last & ~mask, last, size, out);
      return;
    }
  }
  std::string low, high;
  append_utf8(first, low);
  append_utf8(last, high);
  std::vector<ByteSet> product;
  for (size_t i = 0; i < low.size(); ++i) {
    product.push_back(byte_range(static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])));
  }
  out.push_back(std::move(product));
}

}  // namespace

GrammarBuilder::Expr GrammarBuilder::code_points(const CodePoints& ranges) {
  constexpr std::array<std::pair<char32_t, char32_t>, 5> kSizes = {
      {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}}};
  constexpr std::array<int, 5> kBytes = {1, 2, 3, 3, 4};
  if (full_) return 0;
  ByteSet single;
  std::vector<std::vector<ByteSet>> products;
  for (const auto& [first, last] : ranges) {
    for (size_t i = 0; i < kSizes.size(); ++i) {
      const char32_t low = std::max(first, kSizes[i].first), high = std::min(last, kSizes[i].second);
      if (low > high) continue;
      if (i == 0) {
        single |= byte_range(static_cast<int>(low), static_cast<int>(high));
      } else {
        utf8_products(low, high, kBytes[i], products);
      }
    }
  }
  std::vector<Expr> parts;
  if (single.any()) parts.push_back(bytes(single));
  for (const std::vector<ByteSet>& product : products) {
    std::vector<Expr> sequence;
    for (const ByteSet& set : product) sequence.push_back(bytes(set));
    parts.push_back(concat(std::move(sequence)));
  }
  return choice(std::move(parts));
}

}  // namespace atom::text
