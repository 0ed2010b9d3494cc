// A tool call as part of a grammar.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/grammar.h"
#include "text/response_format.h"
#include "text/response_parser.h"

namespace atom::text {

// One call of one of `tools`, from call_prefix() to the end of the text. Arguments conform to the tool's
// schema (as json_schema_grammar.h has it); a schema that cannot be compiled is an error for a strict tool,
// and lets others pass with any arguments. Where the syntax is untyped, strings are any text that does not
// contain the closing tag. `specials` as in answer_grammar.h. Error (invalid): no tools; the format has no
// calls.
Result<GrammarBuilder::Expr> call_expr(GrammarBuilder& builder, const FormatChoice& format,
                                       const std::vector<ToolSchema>& tools,
                                       std::span<const std::string> specials);

}  // namespace atom::text
