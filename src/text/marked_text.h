// Free text in a grammar, up to the marks of a response format.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "text/grammar.h"

namespace atom::text {

// A text of a format as a TokenTrie spells it: each of `specials` in it has TokenTrie::kSpecial in front.
std::string spell_specials(std::string_view text, std::span<const std::string> specials);

// Text up to the first `through`, and that; with an empty `through`, text up to anywhere. None of `without`
// stands in it. All as spelled by spell_specials(); the text itself has no special tokens.
GrammarBuilder::Expr text_through(GrammarBuilder& builder, std::string_view through,
                                  std::span<const std::string> without);

}  // namespace atom::text
