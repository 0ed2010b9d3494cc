// Grammars that a request brings along as text.
#pragma once
#include <memory>
#include <string_view>

#include "base/error.h"
#include "text/grammar.h"

namespace atom::text {

// Reads a grammar in the notation of GBNF (name ::= ...) or the plain part of Lark's (name: ...). A rule is
// made of "literals", [classes], /regular expressions/, ., rule names, ( groups ), | and the repeats * + ?
// {n} {n,} {n,m}; comments begin with # or //. The text begins with the rule `root` or `start`. Rules end
// where the next one begins. Lark's %directives, priorities, aliases and templates are refused by name. Error
// (invalid): "grammar: line 3: ...".
Result<std::shared_ptr<const Grammar>> ebnf_grammar(std::string_view source);

// The same as part of a larger grammar. After an error the builder holds parts of no use.
Result<GrammarBuilder::Expr> ebnf_expr(GrammarBuilder& builder, std::string_view source);

}  // namespace atom::text
