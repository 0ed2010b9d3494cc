// Regular expressions as parts of a grammar.
#pragma once
#include <functional>
#include <string_view>

#include "base/error.h"
#include "text/grammar.h"

namespace atom::text {

struct RegexOptions {
  // true: the pattern may match anywhere in the text unless ^ and $ say otherwise (JSON schema); false: it
  // matches the whole text.
  bool search = false;
  // How a set of characters is written; default as UTF-8.
  std::function<GrammarBuilder::Expr(const CodePoints&)> characters;
};

// The ECMAScript syntax that has a finite automaton: alternatives, groups, classes, \d \w \s and their
// complements, escapes, quantifiers (lazy ones match the same texts), ^ and $ at the ends. Look-around, back
// references, \b, named classes and flags are refused by name. Error (invalid): "regex: byte 5: ...". Linear
// in the pattern.
Result<GrammarBuilder::Expr> regex_expr(GrammarBuilder& builder, std::string_view pattern,
                                        const RegexOptions& options = {});

// Ascending, without overlaps; and all other code points.
CodePoints normalize_code_points(CodePoints ranges);
CodePoints complement_code_points(const CodePoints& ranges);

}  // namespace atom::text
