// Text without marks as an automaton over characters, in the manner of Aho and Corasick.
#include "text/marked_text.h"

#include <map>
#include <set>
#include <vector>

#include "text/regex_grammar.h"
#include "text/token_trie.h"
#include "text/unicode.h"

namespace atom::text {
namespace {

using Expr = GrammarBuilder::Expr;

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  for (size_t at = 0; at < text.size();) characters += read_utf8(text, at);
  return characters;
}

bool has_special(std::string_view mark) {
  return mark.find(TokenTrie::kSpecial) != mark.npos;  // which no character's UTF-8 contains
}

// The longest end of `text` that a mark begins with.
std::u32string seen_at_end(const std::u32string& text, const std::vector<std::u32string>& marks) {
  for (size_t from = 0; from < text.size(); ++from) {
    const std::u32string tail = text.substr(from);
    for (const std::u32string& mark : marks) {
      if (mark.starts_with(tail)) return tail;
    }
  }
  return {};
}

bool ends_with_any(const std::u32string& text, std::span<const std::u32string> marks) {
  for (const std::u32string& mark : marks) {
    if (text.ends_with(mark)) return true;
  }
  return false;
}

}  // namespace

std::string spell_specials(std::string_view text, std::span<const std::string> specials) {
  std::string spelled;
  for (size_t at = 0; at < text.size(); ++at) {
    for (const std::string& special : specials) {
      if (!text.substr(at).starts_with(special)) continue;
      spelled += TokenTrie::kSpecial;
      break;
    }
    spelled += text[at];
  }
  return spelled;
}

Expr text_through(GrammarBuilder& b, std::string_view through, std::span<const std::string> without) {
  if (has_special(through)) return b.concat({text_through(b, "", without), b.literal(through)});
  std::vector<std::u32string> marks;  // `through` first, if there is one
  const size_t wanted = through.empty() ? 0 : 1;
  if (wanted == 1) marks.push_back(characters_of(through));
  for (const std::string& mark : without) {
    if (!has_special(mark)) marks.push_back(characters_of(mark));
  }
  std::set<char32_t> telling;
  std::map<std::u32string, int> rules;  // by what has been seen of a mark
  for (const std::u32string& mark : marks) {
    telling.insert(mark.begin(), mark.end());
    for (size_t seen = 0; seen < mark.size(); ++seen) rules.try_emplace(mark.substr(0, seen), 0);
  }
  rules.try_emplace(U"", 0);
  for (auto& [seen, rule] : rules) rule = b.add_rule("text");
  CodePoints all_telling;
  for (const char32_t c : telling) all_telling.emplace_back(c, c);
  const Expr other = b.code_points(complement_code_points(all_telling));
  for (const auto& [seen, rule] : rules) {
    std::vector<Expr> parts = {b.concat({other, b.call(rules.at(U""))})};
    if (wanted == 0) parts.push_back(b.empty());
    for (const char32_t c : telling) {
      const std::u32string text = seen + c;
      if (ends_with_any(text, std::span(marks).subspan(wanted))) continue;
      const Expr character = b.code_points({{c, c}});
      if (wanted == 1 && text.ends_with(marks[0])) {
        parts.push_back(character);
      } else {
        parts.push_back(b.concat({character, b.call(rules.at(seen_at_end(text, marks)))}));
      }
    }
    b.define(rule, b.choice(std::move(parts)));
  }
  return b.call(rules.at(U""));
}

}  // namespace atom::text
