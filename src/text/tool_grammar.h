// tool_choice required or named, as a grammar.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/grammar.h"
#include "text/response_format.h"
#include "text/response_parser.h"

namespace atom::text {

// What a model may write behind forced_call_prefix(format, name, ...): the arguments of the tool `name`, or,
// with an empty name, the name of one of the tools and its arguments; then the end of the call and of the
// text. So there is exactly one call. Arguments conform to the tool's schema (as json_schema_grammar has it);
// a schema that cannot be compiled is an error for a strict tool, and lets others pass with any arguments.
// Where the syntax is untyped, strings are any text that does not contain the closing tag. The TokenTrie must
// hold visible_special_tokens(format). Error (invalid): no such tool; no tools; the format has no calls.
Result<std::shared_ptr<const Grammar>> forced_call_grammar(const FormatChoice& format,
                                                           const std::vector<ToolSchema>& tools,
                                                           std::string_view name);

}  // namespace atom::text
