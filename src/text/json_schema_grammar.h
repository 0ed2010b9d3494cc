// Grammars of JSON: any object, and what a JSON schema allows.
#pragma once
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar.h"
#include "text/json_exprs.h"

namespace atom::text {

// Any JSON object ("json_object"). White space between tokens: one space, or a line break and up to 64
// spaces.
Result<std::shared_ptr<const Grammar>> json_object_grammar();

// The JSON texts that a schema allows. All that match it conform to the schema; the other way round the
// grammar is narrower: properties come in the schema's order, unless additionalProperties allows more there
// are none but those that it names, a schema without a type takes the type that its keywords speak of, and
// numbers are none that overflow a double.
//
// Understood: type (also several), properties, required, additionalProperties, items, prefixItems, minItems,
// maxItems, enum, const, anyOf, oneOf (of which more than one may hold), allOf of one, $ref within the
// schema, minLength, maxLength, pattern, format (date, time, date-time, uuid, ipv4, email), minimum, maximum,
// exclusiveMinimum and exclusiveMaximum (whole numbers), and annotations such as title. Everything else is
// refused by name. Error (invalid): "schema: #/properties/a: ...". Time and size are bounded as in grammar.h.
Result<std::shared_ptr<const Grammar>> json_schema_grammar(const Json& schema);

bool says_nothing(std::string_view keyword);  // an annotation: any value conforms to it

// The same as part of a larger grammar, for a part of `root`, within which its references lead. After an
// error the builder holds parts of no use.
Result<GrammarBuilder::Expr> json_schema_expr(GrammarBuilder& builder, const JsonExprs& json,
                                              const Json& schema, const Json& root);

// A text that matches the regular expression as a whole.
Result<std::shared_ptr<const Grammar>> regex_grammar(std::string_view pattern);

}  // namespace atom::text
